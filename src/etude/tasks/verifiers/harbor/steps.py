"""Grades Harbor tasks with several steps, from one diff for the whole task or from one diff per step.

A single diff is graded with the tests of all steps (`Grader.grade`). With one diff per step, each is graded with the
tests of its own step. Every diff is relative to the pristine workspace, so a step's diff includes the work of the steps
before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from etude.tasks.harbor import parse_harbor, parts_of
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Evidence, Judgement, Verdict


class Grades(Protocol):
    async def grade(self, task: Task, diff: str, *, fresh: bool = False) -> Verdict: ...


def step_tasks(task: Task) -> list[Task]:
    """Return one task per step of a Harbor task. A task without steps is returned as it is."""
    parts = parts_of(parse_harbor(task.config, task.directory / "task.toml"))
    if not parts[0].name:
        return [task]
    return [_step(task, part.name) for part in parts]


async def grade_steps(grader: Grades, task: Task, diffs: Sequence[str], *, fresh: bool = False) -> Verdict:
    """Grade one diff with the tests of all steps, or one diff per step with that step's tests. Raises TaskError for any
    other number of diffs."""
    steps = step_tasks(task)
    if len(diffs) == 1:
        return await grader.grade(task, diffs[0], fresh=fresh)
    if len(diffs) != len(steps):
        raise TaskError(
            f"{task.directory}: expected one diff, or one for each of {len(steps)} steps, found {len(diffs)}"
        )
    verdicts = []
    for step, diff in zip(steps, diffs, strict=True):
        verdicts.append(await grader.grade(step, diff, fresh=fresh))
        if verdicts[-1].judgement is Judgement.ERROR:
            break
    return _together([step.verifier["step"] for step in steps], verdicts)


def _step(task: Task, name: str) -> Task:
    text = (task.directory / "steps" / name / "instruction.md").read_text(encoding="utf-8").rstrip("\n")
    return replace(task, id=f"{task.id}:{name}", instruction=text, verifier={**task.verifier, "step": name})


def _together(names: Sequence[str], verdicts: Sequence[Verdict]) -> Verdict:
    """Combine the steps' verdicts. All steps must pass; otherwise the first that does not gives the judgement."""
    passed = [verdict.passed for verdict in verdicts]
    worst = next((verdict for verdict in verdicts if not verdict.passed), verdicts[-1])
    reasons = ", ".join(f"{name}: {verdict.reason}" for name, verdict in zip(names, verdicts, strict=False))
    evidence = Evidence(
        exit_code=worst.evidence.exit_code,
        tests_expected=len(names),
        tests_passed=sum(passed),
        failed_tests=tuple(name for name, good in zip(names, passed, strict=False) if not good),
        seconds=sum(verdict.evidence.seconds for verdict in verdicts),
        log=worst.evidence.log,
        sealed=all(verdict.evidence.sealed for verdict in verdicts),
        score=sum(verdict.evidence.score or 0.0 for verdict in verdicts) / len(names),
    )
    return Verdict(worst.judgement, f"{sum(passed)} of {len(names)} steps passed ({reasons})", evidence)
