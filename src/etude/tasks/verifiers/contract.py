"""What a verifier is: given one change to one task, and fresh boxes to examine it in, it says what the change is worth.

A verifier is made from a task (`open_verifier`), once, and knows nothing of diffs: what it sees has been applied to the
pristine files already, with the test surface as it was.
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
from etude.tasks.task import Task
from etude.tasks.verdict import Verdict

SECOND_USER = "grader"
SEALED = 1e-2
"""A verdict is sealed if the chance to pass without solving anything is at most this."""
WALL = 3.0
"""The wall clock of what is run, as a multiple of its CPU time."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one change is examined. Boxes made here are new, hold nothing of an agent's but its change, and are gone
    at the end."""

    task: Task
    sandboxes: Sandboxes
    pristine: Prepared
    change: Change
    conditions: Conditions = USUAL
    """Their variables are in every box; who runs tests in some order asks for it here."""
    cpu_seconds: list[float] = field(default_factory=list)
    """Of each box that was examined to its end."""
    proofs: Proofs | None = None
    """What earlier processes have proven; None where nothing is kept."""

    @property
    def user(self) -> str:
        """Runs the code under test: where there is a second user, not the one who owns its files."""
        return SECOND_USER if Feature.SECOND_USER in self.sandboxes.features else "agent"

    @asynccontextmanager
    async def box(self, limits: Limits, change: Change | None = None) -> AsyncIterator[Box]:
        """A box of the pristine image with the change in it, or with another one."""
        pristine, change = self.pristine, change or self.change
        box = await self.sandboxes.create(
            BoxSpec(
                pristine.image,
                workdir=pristine.workdir,
                env=self.conditions.env,
                limits=limits,
                name="grader",
            )
        )
        try:
            await _apply(box, change)
            yield box
            self.cpu_seconds.append((await box.stats()).cpu_seconds)
        finally:
            await box.destroy()


@runtime_checkable
class Verifier(Protocol):
    @property
    def sealed(self) -> bool:
        """Does its verdict hold against an agent that has read its source? (Given a second user in the box.)"""
        ...

    def protects(self, path: str) -> bool:
        """Is this path of the workspace part of the test surface, and no business of a solution?"""
        ...

    async def examine(self, stand: Stand) -> Verdict:
        """SandboxError and OSError are faults of ours, an `error`; what the code under test does never raises."""
        ...


@runtime_checkable
class Proves(Protocol):
    """A verifier that finds out by running a task's reference whether its verdicts are sealed."""

    def recall(self, folder: Path) -> bool:
        """Is `sealed` known, by what was proven where environments are kept in this folder?"""
        ...


async def _apply(box: Box, change: Change) -> None:
    gone = [path for path, data in change.files.items() if data is None]
    # A file may come where all files of a folder go; the folder itself is in no diff.
    emptied = [path for path, data in change.files.items() if data is not None and _holds(path, gone)]
    if gone:
        # Before anything of the agent's is in the box, so the image's own `rm` does it.
        done = await box.exec(["rm", "-rf", "--", *gone, *emptied], timeout=60)
        if done.code != 0:
            raise OSError(f"files cannot be removed: {done.stderr[-200:].decode('utf-8', 'replace')}")
    for path, data in change.files.items():
        if data is not None:
            await box.write_file(path, data, executable=path in change.executable)


def _holds(folder: str, paths: list[str]) -> bool:
    return any(path.startswith(f"{folder}/") for path in paths)
