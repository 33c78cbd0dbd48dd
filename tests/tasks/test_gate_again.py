"""Re-validation: the clock really is moved, and what depends on it does not pass again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from etude.sandbox.contract import Sandboxes
from etude.tasks import GateOutcome, GateResult, Grader, Task, gate_tasks, reference_diff, revalidate
from etude.tasks.conditions import GATE, USUAL, days_later, faketime_library
from etude.tasks.gate import revalidation

from .test_gate import RIGHT, copy_of, suite_of

needs_faketime = pytest.mark.skipif(not faketime_library(), reason="libfaketime is not installed (make tools)")


async def both(
    sandboxes: Sandboxes, tasks: Sequence[Task], place: Path
) -> tuple[dict[str, GateResult], dict[str, GateResult]]:
    first = await gate_tasks(tasks, sandboxes, place / "gate.jsonl", runs=1)
    return first, await revalidate(tasks, sandboxes, place / "again.jsonl")


@needs_faketime
async def test_what_depends_on_the_date_passes_the_gate_but_not_400_days_later(
    sandboxes: Sandboxes, train_tasks: list[Task], tmp_path: Path
) -> None:
    end = int(time.time()) + 100 * 86_400
    bomb = f"    def test_it(self):\n        import time\n        self.assertLess(time.time(), {end})\n" + RIGHT
    sleeps = "    def test_it(self):\n        import time\n        time.sleep(0.01)\n" + RIGHT
    tasks = [
        copy_of(train_tasks[0], tmp_path / "sound"),
        suite_of(tmp_path / "bomb", bomb),
        suite_of(tmp_path / "sleeps", sleeps),
    ]
    first, then = await both(sandboxes, tasks, tmp_path)
    assert all(result.survived for result in first.values()), first
    assert all(then[name].survived for name in ("sound", "sleeps")), then
    assert then["bomb"].outcome is GateOutcome.REFERENCE_FAILS
    assert all(run.conditions.startswith("400 days later") for result in then.values() for run in result.runs)
    assert (tmp_path / "bomb" / revalidation.EVIDENCE).is_file()


@pytest.mark.parametrize(
    "library", ["", pytest.param("/nowhere/libfaketime.so.1", marks=needs_faketime)], ids=["none", "not in the image"]
)
async def test_without_a_library_that_the_image_can_load_the_evidence_says_that_the_clock_stood(
    sandboxes: Sandboxes, train_tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setattr(revalidation, "faketime_library", lambda: library)
    _, then = await both(sandboxes, [copy_of(train_tasks[0], tmp_path / "task")], tmp_path)
    assert then["task"].survived
    assert {run.conditions for run in then["task"].runs} == {"0 days later"}


@pytest.mark.slow
@needs_faketime
async def test_a_wait_that_the_library_makes_endless_passes_by_its_other_way(
    sandboxes: Sandboxes, tmp_path: Path
) -> None:
    waits = "    def test_it(self):\n        import threading\n        threading.Event().wait(0.01)\n" + RIGHT
    task = suite_of(tmp_path / "waits", waits)
    hurried = replace(task, limits=replace(task.limits, verifier_seconds=5.0))  # All of it, the endless wait takes.
    _, then = await both(sandboxes, [hurried], tmp_path)
    assert then["waits"].survived, then
    names = ["400 days later", "400 days later, timers as they are"]
    assert [(run.conditions, run.set_aside) for run in then["waits"].runs[1:]] == list(
        zip(names, (True, False), strict=True)
    )


@needs_faketime
async def test_the_runner_of_cases_waits_by_no_clock_that_the_library_breaks(
    sandboxes: Sandboxes, train_tasks: list[Task]
) -> None:
    """Between the end of its output and that of the process, that is: not every time."""
    task, conditions = train_tasks[0], days_later(400, faketime_library()).fallback

    grader, diff = Grader(sandboxes), reference_diff(task)
    verdicts = [await grader.grade(task, diff, conditions=conditions) for _ in range(30)]
    assert [verdict.reason for verdict in verdicts if not verdict.passed] == []


def test_no_two_conditions_are_alike() -> None:
    every = [USUAL, *GATE, days_later(400, "lib"), days_later(0, "")]
    assert len({conditions.name for conditions in every}) == len(every)
    for name in ("TZ", "PYTHONHASHSEED"):
        assert len({dict(conditions.env)[name] for conditions in every[1:-1]}) == len(GATE) + 1
    assert len({dict(conditions.env)["LANG"] for conditions in every[1:-1]}) > 2
    assert any(conditions.busy for conditions in GATE)
    assert len({conditions.order for conditions in GATE}) == len(GATE)
    assert dict(days_later(0, "").env).keys() == {"TZ", "LANG", "LC_ALL", "PYTHONHASHSEED"}
