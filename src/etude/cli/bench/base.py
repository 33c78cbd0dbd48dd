"""etude bench base: measures models on a repository, and prints how they compare."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from etude.bench import (
    BenchError,
    Kept,
    ModelResult,
    Prompt,
    Question,
    Rebuild,
    Reply,
    Repository,
    ask_all,
    chosen,
    question_prompt,
    read_questions,
    read_repository,
    rebuild_prompt,
    rebuilds,
    standings,
    stretches,
)
from etude.cli.bench.base_tables import plan_table, result_tables
from etude.cli.bench.contestants import unanswered
from etude.cli.bench.find_models import LocalModel, Model, ModelOptions, find_models
from etude.cli.bench.open_models import opened
from etude.cli.visible import visible
from etude.cli.wording import count
from etude.journal import ProgressLine, write_atomically

if TYPE_CHECKING:
    from etude.cli.bench.run_models import Cost, Text
    from etude.training.compute import Compute

_CONTEXT = 2048
KEPT = "kept.jsonl"


@dataclass(frozen=True, slots=True)
class BaseOptions:
    models: Sequence[str]
    repository: Path
    revision: str
    languages: tuple[str, ...]
    budget: int
    """Bytes of code to predict."""
    context: int | None
    files: int
    changes: str
    file_bytes: int
    question_file: Path | None
    questions: int
    out: Path | None
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Work:
    """What every model is measured on."""

    repository: Repository
    texts: list[str]
    context: int
    series: list[list[Rebuild]]
    questions: list[Question]

    @property
    def items(self) -> list[Rebuild]:
        return [item for one in self.series for item in one]

    @property
    def prompts(self) -> list[Prompt]:
        return [*map(rebuild_prompt, self.items), *map(question_prompt, self.questions)]

    def lines(self) -> list[str]:
        size = sum(len(text.encode()) for text in self.texts)
        said = [str(self.repository)]
        if self.texts:
            where = f" in {len(self.texts)} stretches" if len(self.texts) > 1 else ""
            said.append(f"perplexity: {size / 1e3:,.0f} kB{where}, windows of {self.context:,} tokens")
        if self.series:
            after = ", ".join(str(len(item.diffs)) for item in self.series[0])
            made = sum(one[0].made for one in self.series)
            how = "out of git's history" if not made else f"{made} of them with changes made up, for want of history"
            said.append(f"state tracking: {count(len(self.series), 'file')} after {after} changes, {how}")
        if self.questions:
            said.append(f"fresh knowledge: {count(len(self.questions), 'question')}")
        return said


def base_command(options: BaseOptions, models: ModelOptions) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    changes = _changes(options.changes)
    questions = read_questions(options.question_file) if options.question_file else []
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise BenchError(f"--out {options.out} is not a folder")
    found = find_models(options.models, models)
    local = [model for model in found if isinstance(model, LocalModel)]
    context = _context(options.context, local)
    if not (options.budget or options.files or questions):
        raise BenchError("nothing to measure: give --budget, --files or --question-file")
    if len(local) < len(found) and not (options.files or questions):
        raise BenchError("an endpoint tells no perplexity: give --files or --question-file, or leave it out")
    with ProgressLine("repository", 0, unit="kB") as line:

        def progress(done: int, total: int) -> None:
            line.total = total / 1e3
            line.update(done / 1e3)

        repository = read_repository(options.repository, options.revision, options.languages, progress)
    work = Work(
        repository,
        stretches(repository.files, options.budget, models.seed) if options.budget and local else [],
        context,
        rebuilds(repository, options.files, changes, options.file_bytes, models.seed) if options.files else [],
        chosen(questions, options.questions, models.seed),
    )
    if options.files and not work.series:
        raise BenchError(f"{repository.path} has no file of 200 to {options.file_bytes} bytes: raise --file-bytes")
    out = options.out or Path("runs") / "bench" / (re.sub(r"[^\w.-]+", "-", repository.path.name) or "repository")
    return _measure(work, found, models, out, dry_run=options.dry_run)


def _measure(work: Work, found: Sequence[Model], options: ModelOptions, out: Path, *, dry_run: bool) -> int:
    there = (out / KEPT).exists()
    kept = Kept(out / KEPT) if there or not dry_run else None
    prompts = work.prompts
    compute, texts, costs = _plan_local(work, found, options, None if dry_run else out / "compute.json", kept or ())
    told = Console(stderr=True)
    for line in [*work.lines(), *([str(compute)] if compute else [])]:
        told.print(visible(line), markup=False, highlight=False, soft_wrap=True)
    told.print(plan_table(found, costs, prompts, options.thinking))
    if dry_run:
        return 0
    assert kept is not None
    results = []
    for model in found:
        result = ModelResult(model.name, _about(model))
        results.append(result)
        _measure_one(model, result, work, texts.get(model.name, []), kept, options, compute)
    settings = {
        "repository": work.repository.path.name,
        "commit": work.repository.commit,
        "seed": options.seed,
        "context": work.context,
        "bytes": sum(len(text.encode()) for text in work.texts),
        "thinking": options.thinking,
        "dtype": compute.dtype_name if compute else None,
    }
    write_atomically(out / "base.json", (json.dumps(standings(settings, results), indent=1) + "\n").encode())
    return _tell(results, work, out)


def _tell(results: Sequence[ModelResult], work: Work, out: Path) -> int:
    for table in result_tables(results, work.items):
        Console().print(table)
    for result in results:
        if notes := result.notes():
            print(visible(f"{result.name}: {', '.join(notes)}"))
    drawn = _draw(results, work, out / "base.png")
    print(f"{out}/base.json has every answer{drawn}")
    without = sum("answer" not in row for result in results for row in (*result.rebuilds, *result.answers))
    if without:
        print(f"etude: {count(without, 'prompt')} got no answer: the same command asks again", file=sys.stderr)
    return 1 if without else 0


def _plan_local(
    work: Work, found: Sequence[Model], options: ModelOptions, memory: Path | None, done: Container[str]
) -> tuple[Compute | None, dict[str, list[Text]], dict[str, Cost]]:
    """Return how the local models compute, what they read and what they cost, by name. Raises BenchError if one does
    not fit into memory."""
    local = _local(found)
    if not local:
        return None, {}, {}
    from etude.cli.bench.run_models import Text, compute_of, cost_of, require_memory  # late: endpoints need no torch

    compute = compute_of(options, memory)
    texts, costs = {}, {}
    for model in local:
        texts[model.name] = [Text.of(model, text, work.context, compute.dtype_name) for text in work.texts]
        costs[model.name] = cost_of(model, texts[model.name], work.prompts, options.thinking, done, compute)
        require_memory(model, costs[model.name], compute.dtype_name)
    return compute, texts, costs


def _measure_one(
    model: Model,
    result: ModelResult,
    work: Work,
    texts: Sequence[Text],
    kept: Kept,
    options: ModelOptions,
    compute: Compute | None,
) -> None:
    shown, prompts = visible(model.name), work.prompts
    if isinstance(model, LocalModel) and texts:
        from etude.cli.bench.run_models import read_texts

        assert compute is not None
        keys = [key for text in texts for key in text.keys]
        start = sum(key in kept for key in keys)
        with ProgressLine("perplexity", len(keys), start=start, unit="windows") as line:
            result.reading = read_texts(model, texts, compute, kept, lambda done: line.update(done, note=shown))
    if prompts:
        left = unanswered(model, prompts, options, compute, kept)
        with ProgressLine("answers", len(prompts), start=len(prompts) - len(left), unit="prompts") as line:
            replies = asyncio.run(
                _answers(model, prompts, left, kept, options, compute, lambda done: line.update(done, note=shown))
            )
        edge = len(work.items)
        result.rebuilt(work.items, replies[:edge], plain=model.plain)
        result.answered(work.questions, replies[edge:], plain=model.plain)


async def _answers(
    model: Model,
    prompts: Sequence[Prompt],
    left: Sequence[Prompt],
    kept: Kept,
    options: ModelOptions,
    compute: Compute | None,
    progress: Callable[[int], None],
) -> list[Reply | None]:
    async with opened(model, left, options, compute) as (one, at_once):
        return await ask_all(one, prompts, kept, at_once, progress)


def _local(found: Sequence[Model]) -> list[LocalModel]:
    return [model for model in found if isinstance(model, LocalModel)]


def _about(model: Model) -> dict[str, Any]:
    if not isinstance(model, LocalModel):
        return {"endpoint": model.url, "plain": False}
    found = model.survey
    return {
        "folder": str(model.folder), "family": found.config.family, "parameters": found.parameters.total,
        "active_parameters": found.parameters.active, "format": model.form_name, "plain": model.plain,
    }  # fmt: skip


def _draw(results: Sequence[ModelResult], work: Work, path: Path) -> str:
    try:
        from etude.view.base_choice import draw_base
    except ModuleNotFoundError:
        return "; pip install 'etude[ui]' brings the plot"
    draw_base(results, work.items, path)
    return f", {path} the plot"


def _changes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= 100 for part in parts):
        raise BenchError(f"--changes {text}: expected numbers from 1 to 100, as 1,2,4")
    return sorted({int(part) for part in parts})


def _context(asked: int | None, local: Sequence[LocalModel]) -> int:
    least = min(local, key=lambda model: model.survey.config.max_position_embeddings, default=None)
    most = _CONTEXT if least is None else least.survey.config.max_position_embeddings
    if asked is not None and asked > most and least is not None:
        raise BenchError(f"--context {asked}: {least.name} has {most} positions; lower it")
    return asked or min(_CONTEXT, most)
