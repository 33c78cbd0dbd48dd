"""Base class of all category sources: turns a draft into a task and the files of its directory.

Invariant: a task's kin (the library or package that it is made from) decides its split. So all tasks of one kin are in
the same split, in every category.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.harness.editing.diff import unified_diff
from etude.tasks.directory import REFERENCE_DIFF, REPOSITORY, WORKDIR
from etude.tasks.task import Split, Task, TaskError, TaskLimits, split_of

_DOCKERFILE = f"FROM {{}}\nWORKDIR {WORKDIR}\nCOPY repo/ {WORKDIR}/\n"


@dataclass(frozen=True, slots=True)
class Draft:
    instruction: str
    kind: str
    """Subcategory of the task, for reports."""
    verifier: dict[str, Any]
    before: Mapping[str, bytes]
    """Files of the workspace as the agent finds it, by path."""
    solved: Mapping[str, bytes]
    other: Mapping[str, bytes] = field(default_factory=dict)
    """Files of a second correct solution; empty if there is none."""
    hidden: Mapping[str, bytes] = field(default_factory=dict)
    """Files of tests/, which the agent does not see. The keys are paths relative to the task's directory."""
    seconds: float = 60.0
    """Wall-clock time limit of the verifier, in seconds."""
    image: str = "python:3.11"
    """Base image of the task's Dockerfile, for the tools that build the environment from a Dockerfile. It is not a slim
    image, because slim images lack make and patch."""


class CategorySource(ABC):
    name: str
    version: int = 1
    category: str

    @abstractmethod
    def kins(self) -> Sequence[str]:
        """Return the names of the libraries or packages that tasks are made from. Every split must have at least one
        name."""

    @abstractmethod
    def draft(self, kin: str, rng: random.Random) -> Draft: ...

    def make(self, split: Split, index: int, seed: int, directory: Path) -> tuple[Task, Mapping[str, bytes]]:
        kins = [kin for kin in self.kins() if split_of(kin) is split]
        if not kins:
            raise TaskError(f"source {self.name} has nothing to make {split} tasks from")
        kin = kins[index % len(kins)]
        # A string seed is hashed by its bytes, the same on every machine.
        draft = self.draft(kin, random.Random(f"{self.name}/{self.version}/{seed}/{split.value}/{index}"))
        task = Task(
            id=f"{self.name}-{split.value}-{index:05d}",
            instruction=draft.instruction,
            category=self.category,
            split=split,
            family=kin,
            kind=draft.kind,
            directory=directory,
            limits=TaskLimits(turns=24, tool_calls=48, tokens=16_384, verifier_seconds=draft.seconds),
            provenance={"source": self.name, "version": self.version, "seed": seed, "index": index},
            verifier=draft.verifier,
            config={
                "environment": {"cpus": 1, "memory_mb": 512, "network_mode": "no-network", "workdir": WORKDIR},
                # The Dockerfile is for other readers of Harbor tasks: here the files alone are enough.
                "metadata": {"etude": {"environment": {"base": "host"}}},
            },
        )
        return task, _files(draft)


def _files(draft: Draft) -> dict[str, bytes]:
    files = {f"{REPOSITORY}/{path}": data for path, data in draft.before.items()} | dict(draft.hidden)
    files["environment/Dockerfile"] = _DOCKERFILE.format(draft.image).encode()
    files[REFERENCE_DIFF] = unified_diff(draft.before, draft.solved).encode()
    if draft.other:
        files["solution/other.diff"] = unified_diff(draft.before, draft.other).encode()
    return files
