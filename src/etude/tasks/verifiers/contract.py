"""The interface of verifiers. A verifier gets one change to one task, and fresh boxes to examine it in, and returns the
verdict.

`open_verifier` creates a verifier once per task. The verifier gets a change as file contents, already derived from the
agent's diff and without changes to protected test files.
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
"""Maximum probability of passing by a guess, for a verdict to count as sealed (safe against forgery)."""
WALL = 3.0
"""Wall-clock limit of a program, as a multiple of its CPU time limit."""


@dataclass(frozen=True, slots=True)
class GradingContext:
    """The inputs of one grading. Also creates the grading's boxes: each one is new, and holds nothing from the agent
    except the change."""

    task: Task
    sandboxes: Sandboxes
    pristine: Prepared
    """The task's prepared environment (image and workspace files), without any change."""
    change: Change
    conditions: Conditions = USUAL
    """Circumstances of this grading, such as the test order. A correct verdict does not depend on them. The environment
    variables in them are set in every box. Verifiers that shuffle tests use their `order` as the seed."""
    cpu_seconds: list[float] = field(default_factory=list)
    """CPU seconds that each box of this grading used. Boxes that raised an error are missing."""
    proofs: Proofs | None = None
    """Store of proofs, or None. A proof is the saved result of trial runs of a task's tests: which expected values a
    grading can keep out of the box, so that the agent's code cannot read them."""

    @property
    def user(self) -> str:
        """The user that runs the code under test: a second user, who does not own its files, if boxes have one."""
        return SECOND_USER if Feature.SECOND_USER in self.sandboxes.features else FIRST_USER

    @property
    def files(self) -> dict[str, bytes]:
        """The contents of the workspace's files after the change, by path."""
        after: dict[str, bytes | None] = {**self.pristine.files, **self.change.files}
        return {path: data for path, data in after.items() if data is not None}

    @asynccontextmanager
    async def box(self, limits: Limits, change: Change | None = None) -> AsyncIterator[Box]:
        """Create a box of the pristine image with `change` applied, by default the change to grade."""
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
        """Whether verdicts are safe against forgery, even by an agent that has read the verifier's source. This assumes
        that boxes have a second user, who runs the code under test and does not own its files."""
        ...

    def protects(self, path: str) -> bool:
        """Return whether a path of the workspace belongs to the test surface: files that a solution must not change."""
        ...

    async def examine(self, context: GradingContext) -> Verdict:
        """Return the verdict on the context's change. A SandboxError or OSError means an infrastructure fault, which
        the caller turns into an `error` verdict. The code under test must not be able to cause either exception."""
        ...


@runtime_checkable
class ProvingVerifier(Protocol):
    """A verifier that must run the reference solution to find out whether its verdicts are sealed."""

    def load_stored_proof(self, folder: Path) -> bool:
        """Set `sealed` from the proof (the result of trial runs) that an earlier run stored in `folder`. Return whether
        `sealed` is known now."""
        ...


async def _apply(box: Box, change: Change) -> None:
    gone = [path for path, data in change.files.items() if data is None]
    # A new file may take the place of a folder whose files are all deleted; diffs do not mention the folder itself.
    written = [path for path, data in change.files.items() if data is not None]
    emptied = [path for path in written if any(other.startswith(f"{path}/") for other in gone)]
    if gone:
        # The image's own `rm` is safe to use: nothing of the agent's is in the box yet.
        done = await box.exec(["rm", "-rf", "--", *gone, *emptied], timeout=60)
        if done.code != 0:
            raise OSError(f"files cannot be removed: {done.stderr[-200:].decode('utf-8', 'replace')}")
    for path, data in change.files.items():
        if data is not None:
            await box.write_file(path, data, executable=path in change.executable)
