"""A small environment of our own: files with a bug, two different honest solutions, and hidden tests."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from etude.tasks.directory import REFERENCE_DIFF, read_task, write_task
from etude.tasks.task import Split, Task
from etude.tasks.verifiers.tests import suite_files

OTHER = "solution/other.diff"
_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Micro:
    name: str
    target: str
    before: Mapping[str, str]
    right: str
    """The target as the reference solves it; `other` is a different solution."""
    other: str
    verifier: Mapping[str, object]
    hidden: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the task's directory."""
    history: Mapping[str, bytes] = field(default_factory=dict)
    """Files of a repository's .git from before the task."""

    def write(self, folder: Path) -> Task:
        def diff(after: str) -> bytes:
            return diff_of({self.target: self.before[self.target]}, {self.target: after}).encode()

        workspace = {path: text.encode() for path, text in self.before.items()}
        return write_environment(
            folder / self.name,
            {**workspace, **self.history},
            diff(self.right),
            diff(self.other),
            self.verifier,
            self.hidden,
        )


def write_environment(
    directory: Path,
    workspace: Mapping[str, bytes],
    right: bytes,
    other: bytes,
    verifier: Mapping[str, object],
    hidden: Mapping[str, bytes],
) -> Task:
    task = Task(
        id=directory.name,
        instruction=f"make {directory.name} work",
        category="debugging",
        split=Split.TRAIN,
        family=f"cheats/{directory.name}",
        kind="environment",
        directory=directory,
        verifier=dict(verifier),
    )
    repository = {f"environment/repo/{path}": data for path, data in workspace.items()}
    write_task(task, {**hidden, **repository, REFERENCE_DIFF: right, OTHER: other})
    return read_task(directory, {Split.TRAIN})


def suite(
    runner: str, files: Mapping[str, str], fails: list[str], passes: list[str], **more: object
) -> tuple[dict[str, object], dict[str, bytes]]:
    """The verifier's table and the task's files of a hidden suite. Test ids are given without the file, which is the
    same for all."""
    first = next(iter(files))
    start = {
        "pytest": f"{first}::",
        "unittest": first.removesuffix(".py").replace("/", ".") + ".",
        "node": f"{first} > ",
    }[runner]
    hidden = suite_files(
        {path: text.encode() for path, text in files.items()},
        [start + name for name in fails],
        [start + name for name in passes],
    )
    brought = {"pytest": "brought"} if runner == "pytest" else {}
    limits = {"seconds": _SECONDS, "memory_mb": 384, "disk_mb": 64}
    return {"type": "tests", "runner": runner, **brought, **limits, **more}, hidden


def diff_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    pieces: list[str] = []
    for path, text in after.items():
        old = before.get(path)
        source = f"a/{path}" if old is not None else "/dev/null"
        pieces += difflib.unified_diff((old or "").splitlines(True), text.splitlines(True), source, f"b/{path}")
    return "".join(pieces)
