"""Objects that all rollouts of one process share: sandbox backend, grader, settings and a cache of the tasks' files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from etude.harness.context.output_limit import Count
from etude.harness.context.profile import Profile
from etude.harness.context.prompt_facts import Surroundings, collect_facts
from etude.harness.from_recipe import budgets_of, limits_text, profile_of, tool_limits
from etude.harness.outcome import Budgets
from etude.harness.tools.context import ToolLimits
from etude.harness.workspaces.box_runner import ExecMemo, lazy_workspace
from etude.harness.workspaces.result_cache import Memo
from etude.harness.workspaces.workspace import OverlayWorkspace, Workspace
from etude.journal import RunPaths
from etude.recipe import Recipe
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.rollout.box_limit import GatedSandboxes
from etude.rollout.job import RolloutJob
from etude.sandbox import limits_of, open_sandboxes
from etude.sandbox.contract import Box, BoxSpec, Feature, Sandboxes
from etude.sandbox.fleet import Fleet
from etude.tasks.agent_box import agent_box
from etude.tasks.directory import read_task
from etude.tasks.environment import Environments
from etude.tasks.grader import Grader
from etude.tasks.task import Split, SplitViolation, Task
from etude.tasks.verdict import Verdict
from etude.trace.live import LiveTrace
from etude.trace.trace import Trace


class Grades(Protocol):
    async def grade(self, task: Task, diff: str) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Subject:
    task: Task
    image: str
    workdir: str
    files: Mapping[str, bytes]


@dataclass(slots=True)
class RolloutSetup:
    sandboxes: Sandboxes
    grader: Grades
    harness: HarnessRecipe
    sandbox: SandboxRecipe
    environments: Environments
    """The tasks' environments, shared with the grader so that each is prepared once for both."""
    memo: ExecMemo = field(default_factory=ExecMemo)
    live: Path | None = None
    """Folder for live traces, which are written while rollouts run. With None, no live traces are written."""

    def profile(self, task: Task) -> Profile:
        return profile_of(self.harness, task.without)

    def limits(self, task: Task, edits: int | None) -> ToolLimits:
        return tool_limits(self.sandbox, edits=edits, strict=self.harness.strict or task.strict)

    def budgets(self, task: Task) -> Budgets:
        """Return the budgets of one rollout: for each, the smaller of the recipe's and the task's."""
        recipe = budgets_of(self.harness)
        return replace(
            recipe,
            turns=min(recipe.turns, task.limits.turns),
            tool_calls=min(recipe.tool_calls, task.limits.tool_calls),
            tokens=min(recipe.tokens, task.limits.tokens),
            wall_seconds=min(recipe.wall_seconds, task.limits.wall_seconds),
        )

    def workspace(self, subject: Subject, name: str) -> OverlayWorkspace:
        usual = limits_of(self.sandbox)

        async def open_box() -> Box:
            limits, env = agent_box(subject.task, usual)
            # BoxSpec allows no egress by default, so the agent has no network.
            spec = BoxSpec(subject.image, workdir=subject.workdir, env=env, limits=limits, name=name)
            return await self.sandboxes.create(spec)

        # Command results are shared between rollouts only if the box has no network and the task names commands that
        # depend on files alone. Without such commands the cache would cost work and never be hit.
        deterministic = subject.task.deterministic
        memo = self.memo if deterministic and Feature.NO_NETWORK in self.sandboxes.features else None
        return lazy_workspace(subject.image, subject.files, open_box, memo, deterministic, subject.workdir)

    def live_trace(self, job: RolloutJob, task: Task, started: float) -> LiveTrace | None:
        if self.live is None:
            return None
        split = task.split.value
        head = Trace(job.id, task.id, split, job.group, job.member, "", job.seed, started=started)
        return LiveTrace(self.live, head)

    async def surroundings(self, profile: Profile, workspace: Workspace, count: Count) -> Surroundings | None:
        if not profile.facts:
            return None
        return await collect_facts(workspace, count, limits=limits_text(self.sandbox))


def open_setup(recipe: Recipe, paths: RunPaths, fleet: Fleet | None = None) -> tuple[RolloutSetup, Grader]:
    """Open sandbox backend and grader; closing the `sandboxes` of the returned RolloutSetup closes both.

    `fleet` runs the sandboxes if the recipe wants them on several nodes (`sandbox.hosts`)."""
    at_once = 2 * len(os.sched_getaffinity(0)) * max(1, recipe.sandbox.hosts)
    sandboxes = GatedSandboxes(open_sandboxes(recipe.sandbox, paths.sandboxes, fleet), at_once)
    environments = Environments(sandboxes, paths.sandboxes / "environments")
    grader = Grader(sandboxes, environments=environments)
    return RolloutSetup(sandboxes, grader, recipe.harness, recipe.sandbox, environments), grader


class TaskCache:
    """Reads each task and prepares its image once. Raises SplitViolation for splits outside `allowed`."""

    def __init__(self, folder: Path, allowed: Iterable[Split], environments: Environments, *, size: int = 8192) -> None:
        self._folder = folder
        self._allowed = frozenset(allowed)
        self._environments = environments
        self._subjects: Memo[str, Subject] = Memo(size)

    async def get(self, task_id: str, split: Split) -> Subject:
        if split not in self._allowed:
            allowed = " or ".join(sorted(self._allowed))
            raise SplitViolation(f"task {task_id} was asked for in split {split}; this reader may only see {allowed}")
        subject = await self._subjects.get(task_id, lambda: self._read(task_id, split))
        subject.task.require(split)
        return subject

    async def _read(self, task_id: str, split: Split) -> tuple[Subject, bool]:
        task = await asyncio.to_thread(read_task, self._folder / split / task_id, {split})
        return await subject_of(task, self._environments), True


async def subject_of(task: Task, environments: Environments) -> Subject:
    pristine = await environments.prepare(task)
    return Subject(task, pristine.image, pristine.workdir, pristine.files)
