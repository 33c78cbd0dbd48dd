"""etude tasks check: reports every mistake in tasks; with --gate or --again it also runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from etude.cli.errors import FAILED
from etude.cli.tasks.find_tasks import named_tasks, opened_grader
from etude.cli.tasks.listing import gate_of
from etude.cli.wording import count, table
from etude.journal import ProgressLine
from etude.tasks import Environments, GateResult, Task, TaskError, gate_tasks
from etude.tasks.cheats import CHEATS, cheats_for_gate
from etude.tasks.check import Checked, check_task
from etude.tasks.directory import REFERENCE_DIFF
from etude.tasks.gate import by_source, revalidate
from etude.tasks.verifiers.harbor import reference_of

_ALL_SHOWN = 20
"""Maximum number of tasks that are all printed; of more tasks, only those with mistakes, notes or a failed gate."""
_EVIDENCE, _AGAIN = "gate.jsonl", "gate-again.jsonl"


def check_command(paths: list[Path], gated: bool, again: bool, runs: int, egress: str, store: Path) -> int:
    checked = [check_task(directory) for directory in named_tasks(paths)]
    sound = [one for one in checked if not one.mistakes]
    results: Mapping[str, GateResult] = {}
    if gated:
        results = asyncio.run(_gate(sound, runs, egress, store))
    if again:
        results = asyncio.run(_gate_again(sound, egress, store))
    for one in checked:
        result = results.get(one.task.id) if one.task else None
        if len(checked) <= _ALL_SHOWN or one.mistakes or one.notes or (result and not result.survived):
            _print(one, result)
    bad = sum(bool(one.mistakes) for one in checked)
    failed = sum(not result.survived for result in results.values())
    ran = f", {len(results) - failed} of {len(results)} passed" if results else ""
    print(f"{count(len(checked), 'task')}, {bad or 'none'} with mistakes{ran}")
    if results:
        print(_sources(results))
    return FAILED if bad or failed else 0


async def _gate(checked: list[Checked], runs: int, egress: str, store: Path) -> dict[str, GateResult]:
    async with opened_grader(store, egress) as grader:
        tasks = [task for one in checked if (task := await _with_reference(one, grader.environments))]
        with ProgressLine("gate", len(tasks), unit="tasks") as line:
            return await gate_tasks(
                tasks,
                grader.sandboxes,
                store / _EVIDENCE,
                runs=runs,
                grader=grader,
                cheats=cheats_for_gate(grader, CHEATS.values()),
                progress=lambda done, _: line.update(done),
            )


async def _gate_again(checked: list[Checked], egress: str, store: Path) -> dict[str, GateResult]:
    """Repeat the gate for the tasks that have passed it, in a store of its own: no image, environment or result of the
    first gate is reused."""
    tasks = [one.task for one in checked if one.task and gate_of(one.task) == "passed"]
    if not tasks:
        raise TaskError("expected tasks that have passed their gate, found none: run `etude tasks check --gate` first")
    async with opened_grader(store / "again", egress) as grader:
        with ProgressLine("gate again", len(tasks), unit="tasks") as line:
            return await revalidate(
                tasks,
                grader.sandboxes,
                store / _AGAIN,
                grader=grader,
                progress=lambda done, _: line.update(done),
            )


async def _with_reference(one: Checked, environments: Environments) -> Task | None:
    """Return the task, once the diff of its reference solution exists. A missing diff is made by running the task's
    solve.sh; return None if that fails."""
    patch = one.directory / REFERENCE_DIFF
    if one.task and not patch.is_file():
        try:
            diffs = await reference_of(one.task, environments)
        except TaskError as error:
            one.mistakes.append(str(error))
            return None
        patch.parent.mkdir(exist_ok=True)
        patch.write_text(diffs[-1], encoding="utf-8")
    return one.task


def _print(one: Checked, result: GateResult | None) -> None:
    unfit = result is not None and not result.survived
    print(f"{'bad' if one.mistakes else 'no' if unfit else 'ok':<4} {one.directory}")
    for mistake in one.mistakes:
        print(f"     {mistake.removeprefix(f'{one.directory}/')}")
    if result is not None and unfit:
        print(f"     {result.outcome.value}")
        for reason in result.reasons:
            print(f"     {reason}")
    for note in one.notes:
        print(f"     note: {note}")


def _sources(results: Mapping[str, GateResult]) -> str:
    rows = [("SOURCE", "TASKS", "PASSED", "OF THEM OPEN", "DISCARDED OR UNDECIDED")]
    for source, counts in by_source(results.values()).items():
        others = [f"{number} {name}" for name, number in counts.items() if name not in ("tasks", "survived", "open")]
        tasks, passed, open_ones = (str(counts[name]) for name in ("tasks", "survived", "open"))
        rows.append((source, tasks, passed, open_ones, ", ".join(others) or "none"))
    return table(rows)
