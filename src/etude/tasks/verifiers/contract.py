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
"""Wall-clock limit of a program, as a multiple of its CPU time limit."""


@dataclass(frozen=True, slots=True)
class GradingContext:
    """What a verifier gets for one grading: the task, the change, and the means to create boxes. Boxes created here are
    new. They contain nothing from an agent except its change, and are destroyed afterwards."""

    task: Task
    sandboxes: Sandboxes
    pristine: Prepared
    """The prepared environment, without any change."""
    change: Change
    """The change to grade."""
    conditions: Conditions = USUAL
    """Conditions of this grading. Every box gets their environment variables. Verifiers that run tests in some order
    take the order from here."""
    cpu_seconds: list[float] = field(default_factory=list)
    """CPU time of each box of this grading, except boxes that failed."""
    proofs: Proofs | None = None
    """The store of what earlier processes have proven; None if nothing is stored."""

    @property
    def user(self) -> str:
        """The user that runs the code under test. If boxes have a second user, it is that one, which does not own the
        code's files."""
        return SECOND_USER if Feature.SECOND_USER in self.sandboxes.features else FIRST_USER

    @property
    def files(self) -> dict[str, bytes]:
        """The workspace's files after the change."""
        after: dict[str, bytes | None] = {**self.pristine.files, **self.change.files}
        return {path: data for path, data in after.items() if data is not None}

    @asynccontextmanager
    async def box(self, limits: Limits, change: Change | None = None) -> AsyncIterator[Box]:
        """Create a box of the pristine image, and apply the change, or another one if given."""
        pristine, change = self.pristine, change or self.change
        spec = BoxSpec(pristine.image, workdir=pristine.workdir, env=self.conditions.env, limits=limits, name="grader")
        async with fresh_box(self.sandboxes, spec) as box:
            await _apply(box, change)
            yield box
            self.cpu_seconds.append((await box.stats()).cpu_seconds)


@runtime_checkable
class Verifier(Protocol):
    """Decides whether a change solves one task."""

    @property
    def sealed(self) -> bool:
        """Whether the verdict holds against an agent that has read the verifier's source, provided that the box has a
        second user."""
        ...

    def protects(self, path: str) -> bool:
        """Return whether this path of the workspace belongs to the test surface, which a solution must not change."""
        ...

    async def examine(self, context: GradingContext) -> Verdict:
        """Return the verdict. A SandboxError or OSError means an infrastructure fault and becomes an `error`; nothing
        that the code under test does may raise one."""
        ...


@runtime_checkable
class ProvingVerifier(Protocol):
    """A verifier that must run a task's reference to find out whether its verdicts are sealed."""

    def load_stored_proof(self, folder: Path) -> bool:
        """Set `sealed` from the proof that an earlier run stored in this folder, if there is one. Return whether
        `sealed` is known now."""
        ...


async def _apply(box: Box, change: Change) -> None:
    """Apply a change to a box of the pristine image."""
    gone = [path for path, data in change.files.items() if data is None]
    # A new file may take the place of a folder whose files are all deleted; diffs do not mention the folder itself.
    emptied = [path for path, data in change.files.items() if data is not None and _has_files_below(path, gone)]
    if gone:
        # The image's own `rm` is safe to use: nothing of the agent's is in the box yet.
        done = await box.exec(["rm", "-rf", "--", *gone, *emptied], timeout=60)
        if done.code != 0:
            raise OSError(f"files cannot be removed: {done.stderr[-200:].decode('utf-8', 'replace')}")
    for path, data in change.files.items():
        if data is not None:
            await box.write_file(path, data, executable=path in change.executable)


def _has_files_below(folder: str, paths: list[str]) -> bool:
    return any(path.startswith(f"{folder}/") for path in paths)
