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
    split: Split
    group: str = ""
    """Name of the group. Rollouts of one prompt share a group, within which advantages are computed."""
    member: int = 0
    seed: int = 0
    attempt: int = 0
    """Number of the attempt: 0 at first, one more for each retry after an infrastructure error."""
    temperature: float = 1.0
    max_edits: int | None = None
    """Maximum number of successful edits; with None, only the limit on turns bounds them."""
    grade_first_edit: bool = False
    """Whether to grade, in addition, the workspace as it was after the first successful edit."""

    @property
    def id(self) -> str:
        """Id of the rollout. Its trace, and its conversation on the engine, have the same id."""
        return f"{self.group or self.task}/{self.member:03d}.{self.attempt}"


@dataclass(slots=True)
class RolloutResult:
    job: RolloutJob
    trace: Trace
    verdict: Verdict
    first_edit: Verdict | None = None
    """Verdict on the first edit alone, if `grade_first_edit` is set. None otherwise, or if no edit succeeded."""

    @property
    def failed_by_us(self) -> bool:
        """Whether infrastructure failed, so that the rollout says nothing about the model."""
        return not self.verdict.judgement.valid
