"""The contract of verifiers: given one change to one task, and fresh boxes to examine it in, return the verdict.

A verifier is created once per task (`open_verifier`) and never sees diffs: the change has already been applied to the
pristine files, with the test surface unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from etude.sandbox.contract import Box, BoxSpec, Feature, Limits, Sandboxes
from etude.tasks.change import Change
from etude.tasks.conditions import USUAL, Conditions
from etude.tasks.environment import Prepared, Proofs
from etude.tasks.fresh_box import fresh_box
from etude.tasks.task import Task
from etude.tasks.verdict import Verdict

FIRST_USER = "agent"
SECOND_USER = "grader"
SEALED = 1e-2
"""A verdict is sealed if the probability of passing without solving the task is at most this."""
WALL = 3.0
"""Wall-clock limit of what is run, as a multiple of its CPU time."""


@dataclass(frozen=True, slots=True)
class Stand:
    """The setting in which one change is examined. Boxes created here are new, contain nothing of an agent's except
    its change, and are destroyed afterwards."""

    task: Task
    sandboxes: Sandboxes
    pristine: Prepared
    change: Change
    conditions: Conditions = USUAL
    """Conditions of this grading. Every box has their environment variables; verifiers that run tests in some order
    look it up here."""
    cpu_seconds: list[float] = field(default_factory=list)
    """CPU time of each box that was used to the end."""
    proofs: Proofs | None = None
    """What earlier processes have proven; None where nothing is stored."""

    @property
    def user(self) -> str:
        """The user that runs the code under test. Where boxes have a second user, it is not the one that owns the
        code's files."""
        return SECOND_USER if Feature.SECOND_USER in self.sandboxes.features else FIRST_USER

    @property
    def files(self) -> dict[str, bytes]:
        """The workspace with the change."""
        after: dict[str, bytes | None] = {**self.pristine.files, **self.change.files}
        return {path: data for path, data in after.items() if data is not None}

    @asynccontextmanager
    async def box(self, limits: Limits, change: Change | None = None) -> AsyncIterator[Box]:
        """A box of the pristine image with the change, or a different one, applied."""
        pristine, change = self.pristine, change or self.change
        spec = BoxSpec(pristine.image, workdir=pristine.workdir, env=self.conditions.env, limits=limits, name="grader")
        async with fresh_box(self.sandboxes, spec) as box:
            await _apply(box, change)
            yield box
            self.cpu_seconds.append((await box.stats()).cpu_seconds)


@runtime_checkable
class Verifier(Protocol):
    @property
    def sealed(self) -> bool:
        """Whether its verdict holds against an agent that has read its source, given a second user in the box."""
        ...

    def protects(self, path: str) -> bool:
        """Whether this path of the workspace is part of the test surface, which a solution must not change."""
        ...

    async def examine(self, stand: Stand) -> Verdict:
        """Return the verdict. SandboxError and OSError are infrastructure faults and become an `error`; whatever the
        code under test does must not raise."""
        ...


@runtime_checkable
class Proves(Protocol):
    """A verifier that must run a task's reference to find out whether its verdicts are sealed."""

    def recall(self, folder: Path) -> bool:
        """Whether `sealed` is already known from a proof stored in this folder of environments."""
        ...


async def _apply(box: Box, change: Change) -> None:
    gone = [path for path, data in change.files.items() if data is None]
    # A new file may take the place of a folder whose files are all deleted; diffs do not mention the folder itself.
    emptied = [path for path, data in change.files.items() if data is not None and _holds(path, gone)]
    if gone:
        # The image's own `rm` is safe to use: nothing of the agent's is in the box yet.
        done = await box.exec(["rm", "-rf", "--", *gone, *emptied], timeout=60)
        if done.code != 0:
            raise OSError(f"files cannot be removed: {done.stderr[-200:].decode('utf-8', 'replace')}")
    for path, data in change.files.items():
        if data is not None:
            await box.write_file(path, data, executable=path in change.executable)


def _holds(folder: str, paths: list[str]) -> bool:
    return any(path.startswith(f"{folder}/") for path in paths)
