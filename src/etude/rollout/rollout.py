"""One rollout: open a workspace for the task, run the agent loop, take the diff, grade it, return trace and verdict.

Invariant: an infrastructure failure, and nothing else, becomes an `error` verdict with its reason in the trace. A bug
in our own code does not count as infrastructure: it is raised and stops the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from etude.cluster.contract import ClusterError
from etude.engine.protocol import EngineError
from etude.harness.loop import run_agent
from etude.harness.outcome import Outcome
from etude.harness.policy import Policy, PolicyError
from etude.harness.toolbox import Toolbox
from etude.harness.workspaces.workspace import Workspace
from etude.rollout.job import RolloutJob, RolloutResult
from etude.rollout.live_trace import LiveLog
from etude.rollout.setup import RolloutSetup, Subject
from etude.sandbox.contract import SandboxError
from etude.tasks.task import Task
from etude.tasks.verdict import Judgement, Verdict
from etude.trace.builder import TraceBuilder
from etude.trace.conversation.messages import Conversation
from etude.trace.conversation.openai_messages import whole_chain
from etude.trace.trace import StopCause, Trace

INFRASTRUCTURE = (PolicyError, SandboxError, EngineError, ClusterError)

PolicyFactory = Callable[[RolloutJob, Task, TraceBuilder], Policy]


@runtime_checkable
class Closing(Protocol):
    """A policy with a `close` method, which is called when its rollout is over."""

    async def close(self) -> None: ...


class _FirstEdit:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.diff: str | None = None

    async def look(self) -> None:
        if self.diff is None:
            self.diff = await self._workspace.diff()


async def run_rollout(
    job: RolloutJob, subject: Subject, make_policy: PolicyFactory, setup: RolloutSetup
) -> RolloutResult:
    task = subject.task.require(job.split)
    started, begun = time.time(), time.monotonic()
    live = setup.live_trace(job, task, started)
    recorder = TraceBuilder(live.steps if live else None)
    profile = setup.profile(task)
    workspace = setup.workspace(subject, job.id)
    first_edit = _FirstEdit(workspace)
    limits = setup.limits(task, job.max_edits)
    toolbox = Toolbox(profile.schemas(), workspace, limits, profile, after_edit=first_edit.look)
    policy = make_policy(job, task, recorder)
    outcome = Outcome(Conversation(job.id))
    diff = ""
    try:
        try:
            told = await setup.surroundings(profile, workspace, policy.count)
            conversation = outcome.conversation = profile.open(task.instruction, job.id, told)
            observer = LiveLog(live) if live else None
            budgets = setup.budgets(task)
            await run_agent(conversation, policy, toolbox, budgets, profile, observer=observer, outcome=outcome)
            diff = await workspace.diff()
        finally:
            # Close before grading: in lockstep the engine waits for every open conversation.
            if isinstance(policy, Closing):
                await asyncio.shield(policy.close())
            await asyncio.shield(workspace.close())
            if live is not None:
                live.steps.close()
    except INFRASTRUCTURE as error:
        outcome.stop, outcome.error = StopCause.ERROR, f"{type(error).__name__}: {error}"
    graded = time.monotonic()
    verdict = await _guarded(outcome, lambda: _judge(outcome, setup, task, diff))
    early: Verdict | None = None
    if job.grade_first_edit and first_edit.diff is not None and verdict.judgement.valid:
        alone = first_edit.diff
        early = await _guarded(outcome, lambda: setup.grader.grade(task, alone))
    ended = time.monotonic()
    trace = Trace(
        id=job.id,
        task=task.id,
        split=task.split.value,
        group=job.group,
        member=job.member,
        policy=policy.name,
        seed=job.seed,
        segments=recorder.segments(),
        tools=outcome.tools,
        usage=outcome.usage,
        stop=outcome.stop,
        error=outcome.error,
        started=started,
        timing={**outcome.seconds, "grade": ended - graded, "total": ended - begun},
        diff=diff,
        messages=whole_chain(outcome.conversation),
    )
    if live is not None:
        live.done()
    return RolloutResult(job, trace, verdict, early)


def lost_rollout(job: RolloutJob, error: Exception) -> RolloutResult:
    """Return the result of a rollout that an infrastructure error stopped before it began."""
    reason = f"{type(error).__name__}: {error}"
    trace = Trace(
        job.id, job.task, job.split.value, job.group, job.member, "", job.seed, error=reason, started=time.time()
    )
    return RolloutResult(job, trace, Verdict(Judgement.ERROR, reason))


async def _judge(outcome: Outcome, setup: RolloutSetup, task: Task, diff: str) -> Verdict:
    if outcome.failed_by_us:
        return Verdict(Judgement.ERROR, outcome.error or str(outcome.stop))
    if outcome.stop.truncated:
        return Verdict(Judgement.FAIL, f"ran out of its budget: {outcome.stop}")
    return await setup.grader.grade(task, diff)


async def _guarded(outcome: Outcome, judge: Callable[[], Awaitable[Verdict]]) -> Verdict:
    """Return the verdict of `judge`. If it raises an infrastructure error, note that in `outcome` and return an `error`
    verdict, since it says nothing about the solution."""
    try:
        return await judge()
    except INFRASTRUCTURE as error:
        outcome.error = outcome.error or f"{type(error).__name__}: {error}"
        return Verdict(Judgement.ERROR, outcome.error)
