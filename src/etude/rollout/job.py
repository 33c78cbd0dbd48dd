"""What is asked of a rollout and what comes back: plain data, cheap to send between processes.

A job names its task; the worker has the task's files. Two jobs with equal fields ask for the same random draws.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.tasks.task import Split
from etude.tasks.verdict import Verdict
from etude.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class RolloutJob:
    task: str
    """Task id."""
    split: Split
    group: str = ""
    """Rollouts of one prompt share a group; the advantage is taken inside it."""
    member: int = 0
    seed: int = 0
    attempt: int = 0
    """0 for the first; a rollout that infrastructure failed is tried again under the next number."""
    temperature: float = 1.0
    max_edits: int | None = None
    """Successful edits the agent may make; None leaves it to the turns."""
    grade_first_edit: bool = False
    """Also grade what the first successful edit alone would have achieved."""

    @property
    def id(self) -> str:
        """Names the rollout, its trace and its conversation on the engine."""
        return f"{self.group or self.task}/{self.member:03d}.{self.attempt}"


@dataclass(slots=True)
class RolloutResult:
    job: RolloutJob
    trace: Trace
    verdict: Verdict
    first_edit: Verdict | None = None
    """With `grade_first_edit`: the verdict on the first edit alone; None when there was none."""

    @property
    def failed_by_us(self) -> bool:
        return not self.verdict.judgement.valid
