"""The Task noun: an instruction, an environment, a verifier, limits, provenance and a split.

On disk a task is a Harbor task directory; what Étude adds lives under [metadata.etude], and unknown keys survive.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class TaskError(Exception):
    """A task directory is malformed: names file, field and expectation."""


class SplitViolation(Exception):
    """A reader was given a task of a split that it must not see."""


class Split(StrEnum):
    TRAIN = "train"
    DEV = "dev"
    TEST = "test"


class Cell(StrEnum):
    """What of a task was met in training: others of its family, others of its kind. The task itself never was."""

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
    """Budgets are the model's: exceeding them is a fail. The wall clock is a safety net: its expiry is an error."""

    turns: int = 12
    tool_calls: int = 24
    tokens: int = 4096
    """Sampled tokens of the whole rollout."""
    wall_seconds: float = 300.0
    verifier_seconds: float = 60.0


@dataclass(slots=True)
class Task:
    id: str
    instruction: str
    category: str
    split: Split
    family: str
    """What the task is one of many of: the template family, or the repository. It decides the split, but for families
    that are met in training and in the test, each with its own instances (`cell`)."""
    kind: str
    """Finer than category: the kind of bug, say. Used by reports, never shown to the agent."""
    directory: Path
    limits: TaskLimits = field(default_factory=TaskLimits)
    provenance: dict[str, Any] = field(default_factory=dict)
    """Generator, version, seed: enough to make it again."""
    config: dict[str, Any] = field(default_factory=dict)
    """task.toml as read, unknown keys included."""
    verifier: dict[str, Any] = field(default_factory=dict)
    """How a change is graded: `type` names the verifier, which knows the other keys."""
    deterministic: tuple[str, ...] = ()
    """Commands whose output depends on the workspace's files alone, not on the clock or on random numbers: rollouts
    with equal files may share it. Only whoever makes the task can know, so none is assumed."""
    strict: bool = False
    """Whether the harness's tools check more here than a run's recipe asks for."""
    without: tuple[str, ...] = ()
    """Tools that the agent does not get here; a command may be called `shell` or `bash`, by the profile."""
    cell: Cell | None = None
    """Used by reports, never shown to the agent; None where the source makes no such difference."""

    def require(self, *allowed: Split) -> Task:
        """Returns itself if its split is among the allowed ones; every reader of tasks calls this."""
        if self.split not in allowed:
            names = " or ".join(allowed)
            raise SplitViolation(f"task {self.id} belongs to {self.split}, this reader may only see {names}")
        return self


def split_of(family: str, *, dev: float = 0.15, test: float = 0.25) -> Split:
    """The split of a family, by hash alone: no run, seed or order can move it."""
    point = int.from_bytes(hashlib.sha256(f"etude-split/1:{family}".encode()).digest()[:8], "big") / 2**64
    if point < test:
        return Split.TEST
    return Split.DEV if point < test + dev else Split.TRAIN
