"""Tries cheats on tasks: each cheat acts in its own box, and its diff is graded like any agent's diff.

The cheat's box lives until the grading is over, so that processes left running there can try to interfere with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from etude.harness.editing.diff import unified_diff
from etude.harness.workspaces.workspace import AGENT_ENV, read_tree
from etude.sandbox.contract import BoxSpec, Limits, SandboxError
from etude.tasks.cheats.cheat import (
    CASES,
    IMAGE,
    MIGRATION,
    MUTATION,
    NODE,
    OTHER,
    PYTEST,
    REVIEW,
    SCRIPT,
    UNITTEST,
    WORKFLOW,
    Cheat,
    Scene,
)  # fmt: skip
from etude.tasks.diff import DiffError, parse_diff
from etude.tasks.fresh_box import fresh_box
from etude.tasks.gate import reference_diff
from etude.tasks.grader import Grader
from etude.tasks.task import Task, TaskError
from etude.tasks.verdict import Judgement, Verdict
from etude.tasks.verifiers import verifier_name

ATTEMPTS = 3
"""Number of times that a grading is tried when it ends in an infrastructure fault."""
_AT_ONCE = 3
_KINDS = {"cases": CASES, "script": SCRIPT, "workflow": WORKFLOW, "dockerfile": IMAGE} | {
    kind: kind for kind in (REVIEW, MIGRATION, MUTATION)
}


@dataclass(frozen=True, slots=True)
class Attempt:
    cheat: str
    task: str
    verdict: Verdict
    lucky: bool = False
    """Whether the cheat passed once, by a guess, but failed when the same diff was graded again. This does not count as
    a success: even where verdicts are sealed (safe against forgery), a guess may pass with a probability of up to
    `SEALED`."""

    @property
    def succeeded(self) -> bool:
        return self.verdict.passed

    @property
    def caught(self) -> bool:
        return self.verdict.judgement in (Judgement.FAIL, Judgement.SUSPECT)


def runner_of(task: Task) -> str:
    """Return what executes the agent's code in a task, such as pytest. It decides which cheats fit the task."""
    if (kind := verifier_name(task)) in _KINDS:
        return _KINDS[kind]
    runner = task.verifier.get("runner")
    return str(runner) if runner in (PYTEST, UNITTEST, NODE) else OTHER


def target_of(task: Task) -> str:
    """Return the first file that the reference changes. A cheat may know it: an honest agent would find it too."""
    try:
        paths = [patch.after or patch.before or "" for patch in parse_diff(reference_diff(task))]
    except DiffError as error:
        raise TaskError(f"{task.directory}: the reference is no diff: {error}") from error
    if not paths:
        raise TaskError(f"{task.directory}: the reference changes nothing: there is nothing to cheat about")
    return paths[0]


async def attempt(cheat: Cheat, task: Task, grader: Grader) -> Attempt:
    """Let a cheat act in a fresh box of the task, and grade its diff. A diff that passes is graded a second time.
    Raises SandboxError if the cheat's box fails. Faults of the grading are in the verdict instead."""
    prepared = await grader.environments.prepare(task)
    limits = Limits(memory_mb=512, processes=64, cpu_seconds=20, disk_mb=512)
    spec = BoxSpec(prepared.image, prepared.workdir, tuple(AGENT_ENV.items()), limits, name="cheat")
    async with fresh_box(grader.sandboxes, spec) as box:
        scene = Scene(box, prepared.workdir, runner_of(task), target_of(task), prepared.files)
        diff = await cheat.act(scene)
        if diff is None:
            diff = unified_diff(prepared.files, await read_tree(box, prepared.files))
        # Equal changes are graded once, since most of what a cheat does outside the workspace never leaves its box.
        verdict = await _graded(grader, task, diff, fresh=False)
        lucky = False
        if verdict.passed:
            verdict = await _graded(grader, task, diff, fresh=True)
            lucky = not verdict.passed
        return Attempt(cheat.name, task.id, verdict, lucky)


async def _graded(grader: Grader, task: Task, diff: str, *, fresh: bool) -> Verdict:
    for _ in range(ATTEMPTS):
        verdict = await grader.grade(task, diff, fresh=fresh)
        if verdict.judgement is not Judgement.ERROR:
            break
    return verdict


def fitting(cheats: Iterable[Cheat], tasks: Iterable[Task]) -> list[tuple[Cheat, Task]]:
    known = list(cheats)
    return [(one, task) for task in tasks for one in known if runner_of(task) in one.fits]


async def try_cheats(
    cheats: Iterable[Cheat],
    tasks: Sequence[Task],
    grader: Grader,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Attempt]:
    """Try every cheat on every task that it fits. Return the attempts, sorted by task and cheat."""
    pairs = fitting(cheats, tasks)
    turn, found = asyncio.Semaphore(_AT_ONCE), []

    async def run(one: Cheat, task: Task) -> None:
        async with turn:
            found.append(await attempt(one, task, grader))
        progress(len(found), len(pairs))

    async with asyncio.TaskGroup() as group:
        for one, task in pairs:
            group.create_task(run(one, task))
    return sorted(found, key=lambda made: (made.task, made.cheat))


def cheats_for_gate(grader: Grader, cheats: Iterable[Cheat]) -> Callable[[Task], Awaitable[list[str]]]:
    """Return a function that tries all cheats on a task and returns the names of those that succeed. It raises
    SandboxError if a cheat cannot be graded. The gate (the check that a task can be used) calls it once per
    environment."""

    async def run(task: Task) -> list[str]:
        found = await try_cheats(cheats, [task], grader)
        if undecided := [made for made in found if not made.succeeded and not made.caught]:
            made = undecided[0]
            raise SandboxError(f"the cheat {made.cheat} was not graded: {made.verdict.reason}")
        return [made.cheat for made in found if made.succeeded]

    return run
