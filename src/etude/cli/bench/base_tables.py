"""The tables of `etude bench base`: what will be measured, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from etude.bench import ModelResult, Prompt, Rebuild, unchanged_score
from etude.cli.bench.find_models import LocalModel, Model
from etude.cli.visible import visible
from etude.cli.wording import count
from etude.rollout.statistics import Estimate

if TYPE_CHECKING:
    from etude.cli.bench.run_models import Cost

_CHARACTERS_PER_TOKEN = 3.3


def plan_table(found: Sequence[Model], costs: Mapping[str, Cost], prompts: Sequence[Prompt], thinking: int) -> Table:
    table = _table("MODEL", "PARAMETERS", "AS", "TAKES")
    for model in found:
        if isinstance(model, LocalModel):
            cost = costs[model.name]
            said = f"{_bytes(cost.memory)}, about {_duration(cost.seconds)}"
            if prompts and cost.most_seconds > 2 * cost.seconds:
                said += f", at most {_duration(cost.most_seconds)}"
            _row(table, model.name, _short(model.survey.parameters.total), model.form_name, said)
        else:
            given = sum(len(prompt.system) + len(prompt.user) for prompt in prompts) / _CHARACTERS_PER_TOKEN
            most = sum(len(prompt.bound) for prompt in prompts) / _CHARACTERS_PER_TOKEN + len(prompts) * thinking
            said = (
                f"{count(len(prompts), 'request')}, about {_short(given)} tokens given, at most {_short(most)} written"
            )
            _row(table, model.name, "", "endpoint", said)
    return table


def result_tables(results: Sequence[ModelResult], items: Sequence[Rebuild]) -> list[Table]:
    read, tracked, asked = (any(flags) for flags in zip(*map(_measured, results), strict=True))
    columns = ["MODEL", *(["BITS/BYTE", "PERPLEXITY"] if read else []), *(["WRONG"] if tracked else [])]
    main = _table(*columns, *(["RIGHT"] if asked else []))
    for result in results:
        cells = [result.name]
        if read and result.reading is not None:
            cells += [f"{result.reading.bits_per_byte:.3f}", f"{result.reading.perplexity:,.1f}"]
        elif read:
            cells += ["-", "-"]
        cells += [_share(result.wrong)] if tracked else []
        cells += [_share(result.right)] if asked else []
        _row(main, *cells)
    tables = [main]
    if tracked:
        changes = sorted({len(item.diffs) for item in items})
        curve = _table("WRONG AFTER", *(count(number, "change") for number in changes))
        for result in results:
            found = result.wrong_by_changes
            _row(curve, result.name, *(f"{found[n]:.1%}" if n in found else "-" for n in changes))
        unchanged = [[unchanged_score(item) for item in items if len(item.diffs) == n] for n in changes]
        _row(curve, "(the first version, unchanged)", *(f"{float(np.mean(scores)):.1%}" for scores in unchanged))
        tables.append(curve)
    return tables


def _measured(result: ModelResult) -> tuple[bool, bool, bool]:
    return result.reading is not None, bool(result.rebuilds), bool(result.answers)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in ("AS", "TAKES") else "right")
    return table


def _row(table: Table, *cells: str) -> None:
    """Add a row of cells that are not markup, whatever a model is called."""
    table.add_row(*(Text(visible(cell)) for cell in cells))


def _share(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.mean:.1%} ±{50 * (found.high - found.low):.1f}"


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{suffix}"
    return f"{number:.0f}"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
