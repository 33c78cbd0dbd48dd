"""A rollout's job and result: plain data that is cheap to send between processes.

A job names its task by id; the worker reads the task's files itself. Two jobs with equal fields ask for the same random
draws.
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
    """Rollouts of one prompt share a group; advantages are computed within it."""
    member: int = 0
    seed: int = 0
    attempt: int = 0
    """0 for the first try; a retry after an infrastructure error gets the next number."""
    temperature: float = 1.0
    max_edits: int | None = None
    """How many successful edits the agent may make; None sets no limit beyond that on turns."""
    grade_first_edit: bool = False
    """Also grade the workspace as it was after the first successful edit."""

    @property
    def id(self) -> str:
        """Id of the rollout, of its trace and of its conversation on the engine."""
        return f"{self.group or self.task}/{self.member:03d}.{self.attempt}"


@dataclass(slots=True)
class RolloutResult:
    job: RolloutJob
    trace: Trace
    verdict: Verdict
    first_edit: Verdict | None = None
    """With `grade_first_edit`: the verdict on the first edit alone; None if no edit succeeded."""

    @property
    def failed_by_us(self) -> bool:
        """Whether infrastructure failed, so that the rollout says nothing about the model."""
        return not self.verdict.judgement.valid
