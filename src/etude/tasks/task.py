"""The Task class: an instruction, an environment, a verifier, limits, provenance and a split.

On disk a task is a Harbor task directory. Étude's own fields live under [metadata.etude], and unknown keys survive.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class TaskError(Exception):
    """A task directory is malformed. The message names the file, the field and what was expected."""


class SplitViolation(Exception):
    """A task belongs to a split that its reader must not see."""


class Split(StrEnum):
    """The three sets of tasks: for training, for development decisions, and for the final score."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"


class Cell(StrEnum):
    """Whether training uses tasks of this task's family, of its kind of bug, of both or of neither. It says nothing
    about the task itself: training never uses a dev or test task."""

    BOTH_SEEN = "both_seen"
    UNSEEN_FAMILY = "unseen_family"
    UNSEEN_KIND = "unseen_kind"
    BOTH_UNSEEN = "both_unseen"

    @property
    def family_seen(self) -> bool:
        return self in (Cell.BOTH_SEEN, Cell.UNSEEN_KIND)

    @property
    def kind_seen(self) -> bool:
        return self in (Cell.BOTH_SEEN, Cell.UNSEEN_FAMILY)


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Budgets of one rollout. Exceeding turns, tool calls or tokens is the model's fault and gives `fail`. The wall
    clock is a safety net; when it expires, the result is `error`."""

    turns: int = 12
    tool_calls: int = 24
    tokens: int = 4096
    """Maximum number of sampled tokens over the whole rollout."""
    wall_seconds: float = 300.0
    verifier_seconds: float = 60.0


@dataclass(slots=True)
class Task:
    """One task: what an agent is asked to do, where it works, and how the result is graded."""

    id: str
    instruction: str
    category: str
    split: Split
    family: str
    """The template family or repository that the task comes from; it decides the split. All tasks of a family share a
    split, except families that appear in both training and test with different instances (see `cell`)."""
    kind: str
    """A finer label than `category`, such as the kind of bug. Used by reports, never shown to the agent."""
    directory: Path
    limits: TaskLimits = field(default_factory=TaskLimits)
    provenance: dict[str, Any] = field(default_factory=dict)
    """How the task was made. For a generated task: generator, version, seed and index, enough to generate it again."""
    config: dict[str, Any] = field(default_factory=dict)
    """The contents of task.toml as read, unknown keys included."""
    verifier: dict[str, Any] = field(default_factory=dict)
    """How a change is graded: `type` names the verifier, and the other keys are that verifier's settings."""
    deterministic: tuple[str, ...] = ()
    """Commands whose output depends only on the workspace's files, not on the clock or random numbers; rollouts with
    equal files may share this output. Only the task's author can know this, so no other command is assumed to be
    deterministic."""
    strict: bool = False
    """Whether the tools check calls more strictly for this task than the run's recipe asks for."""
    without: tuple[str, ...] = ()
    """Tools that the agent does not get. The command tool is called `shell` or `bash`, depending on the profile."""
    cell: Cell | None = None
    """Whether training uses tasks of the same family and of the same kind of bug (see Cell). Used by reports, never
    shown to the agent. None if the task's source does not distinguish this."""

    def require(self, *allowed: Split) -> Task:
        """Return the task, or raise SplitViolation if its split is not allowed. Every reader of tasks calls this."""
        if self.split not in allowed:
            names = " or ".join(allowed)
            raise SplitViolation(f"task {self.id} belongs to {self.split}, this reader may only see {names}")
        return self


def split_of(family: str, *, dev: float = 0.15, test: float = 0.25) -> Split:
    """Return the split of a family. The family's name alone decides it, so no run, seed or order can change it."""
    point = int.from_bytes(hashlib.sha256(f"etude-split/1:{family}".encode()).digest()[:8], "big") / 2**64
    if point < test:
        return Split.TEST
    return Split.DEV if point < test + dev else Split.TRAIN
