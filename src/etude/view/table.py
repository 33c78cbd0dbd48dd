"""The closing table: what each stage shows, before and after, and the seconds it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etude.tasks.task import Cell

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    stage: str
    shows: str
    before: str
    after: str
    seconds: float | None


def closing_table(summary: Summary) -> list[Line]:
    """One line per thing shown; what a run has not reached yet is left out."""
    seconds = summary.get("seconds", {})
    lines: list[Line] = []

    def add(stage: str, shows: str, before: str | None, after: str | None) -> None:
        if after is not None:
            taken = seconds.get(stage) if all(line.stage != stage for line in lines) else None
            lines.append(Line(stage, shows, before or "", after, taken))

    add("pretrain", "held-out loss on code", _at(summary, "pretrain.loss_before"), _at(summary, "pretrain.loss_after"))
    add(
        "long",
        "loss beyond the base length",
        _at(summary, "long.late_loss_before"),
        _at(summary, "long.late_loss_after"),
    )
    add(
        "mtp",
        "drafted tokens accepted",
        _at(summary, "mtp.accepted_per_draft_before", _percent),
        _at(summary, "mtp.accepted_per_draft", _percent),
    )
    add("sft", "loss on held-out demonstrations", _at(summary, "sft.loss_before"), _at(summary, "sft.loss_after"))
    add("sft", "tool calls that are valid", None, _at(summary, "sft.valid_calls", _percent))
    end = _end(summary)
    k = summary.get(end, {}).get("k")
    for key, shows in (
        ("pass1", "test tasks solved, pass@1"),
        ("passk", f"test tasks solved, pass@{k}"),
        ("greedy", "test tasks solved, greedy"),
        ("first_edit", "solved by the first edit"),
        ("one_edit", "solved, one edit allowed"),
    ):
        add(end, shows, _at(summary, f"{end}.{key}_before", _percent), _at(summary, f"{end}.{key}_after", _percent))
    return lines


def measured(summary: Summary) -> str:
    """How the test was taken, in words; empty before it was."""
    found = summary.get(_end(summary), {})
    if not {"tasks", "k", "test_evaluations"} <= found.keys():
        return ""
    greedy = ", and a greedy one" if "greedy_before" in found else ""
    return (
        f"{found['tasks']} test tasks, none of which shares a function with anything trained on; {found['k']} attempts "
        f"at each at temperature 1{greedy}, under the same limits before and after. Whether an attempt passes is for a "
        "grader to say: in a fresh box it applies the agent's change, and nothing else, to an untouched copy, and "
        f"runs tests that the agent never saw. The test was taken {found['test_evaluations']} times in all, when "
        "training was over."
    )


def _end(summary: Summary) -> str:
    """The stage after SFT."""
    return "continued" if "continued" in summary else "rl"


@dataclass(frozen=True, slots=True)
class CellLine:
    family: str
    kind: str
    """Was it met in training?"""
    tasks: int
    scores: tuple[tuple[str, str], ...]
    """Before and after, in the order of `cell_scores`."""


def cell_scores(summary: Summary) -> list[tuple[str, str]]:
    """Key and title of what is told of each cell."""
    k = summary.get("rl", {}).get("k")
    return [("pass1", "pass@1"), ("passk", f"pass@{k}"), ("greedy", "greedy")]


def cell_table(summary: Summary) -> list[CellLine]:
    found = summary.get("cells", {})

    def shown(place: str) -> str:
        return _at(found, place, _percent) or ""

    return [
        CellLine(
            met(cell.family_seen),
            met(cell.kind_seen),
            found[cell]["tasks"],
            tuple((shown(f"{cell}.{key}_before"), shown(f"{cell}.{key}_after")) for key, _ in cell_scores(summary)),
        )
        for cell in Cell
        if cell in found
    ]


def met(seen: bool) -> str:
    return "seen" if seen else "unseen"


def counters(summary: Summary) -> list[tuple[str, str]]:
    """What proves that the parts are real, in words."""
    whole = "{:,.0f}".format
    rows: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("tokens trained on by RL", "rl.trained_tokens", whole),
        ("of these, sampled in a rollout that saw a swap of weights", "rl.multi_version_share", _percent),
        ("rollouts with a self-summary", "rl.summary_share", _percent),
        ("versions between sampling and training, on average", "rl.staleness_mean", "{:.2f}".format),
        ("groups that taught nothing and were dropped", "rl.dropped_groups", whole),
        ("rollouts that infrastructure failed (sampled again)", "rl.infra_errors", whole),
        ("rollouts masked because that kept happening", "rl.masked", whole),
        ("tokens replayed with an expert that the trainer would not have chosen", "replay.overridden", whole),
        ("tokens of which an expert was refused as implausible", "replay.refused", whole),
        ("mismatch with the engine (p99 of log-probs), without replay", "replay.p99_off", "{:.4f}".format),
        ("the same with replay and its filter", "replay.p99_filter", "{:.4f}".format),
        ("drafted tokens accepted by the engine", "engine.accepted_per_draft", _percent),
        ("versions of the weights published as deltas", "weights.deltas", whole),
        ("size of a delta, as a share of the whole", "weights.delta_share_mean", _percent),
        ("tokens sampled per second by the engine", "engine.tokens_per_second", whole),
    )
    return [(what, shown) for what, place, show in rows if (shown := _at(summary, place, show)) is not None]


def _number(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _at(summary: Summary, place: str, show: Callable[[float], str] = _number) -> str | None:
    value: Any = summary
    for key in place.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return show(value) if isinstance(value, int | float) else None


def plain(lines: Sequence[Line]) -> str:
    """The table as plain text, for logs and pipes."""
    rows = [("stage", "what it shows", "before", "after", "seconds")]
    rows += [(x.stage, x.shows, x.before, x.after, "" if x.seconds is None else f"{x.seconds:.0f}") for x in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
