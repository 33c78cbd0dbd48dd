"""A small environment of our own: files with a bug, two different honest solutions, and hidden tests."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from etude.tasks.directory import REFERENCE_DIFF, read_task, write_task
from etude.tasks.task import Split, Task
from etude.tasks.verifiers.tests import suite_files

OTHER = "solution/other.diff"
_SECONDS = 10
_WRITTEN = Path(__file__).parent / "toml"


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

    @classmethod
    def read(cls, name: str) -> Micro:
        """The environment of toml/<name>.toml.

        target            the file with the bug
        reference, other  the target as each solution leaves it: its text, or [what is replaced, by what]
        like              the environment whose target, solutions and files it has
        files             the workspace, by path
        suite, hidden     the arguments and the files of `suite`; or, where there is none, `verifier`
        directory         other files of the task's directory
        """
        table = tomllib.loads((_WRITTEN / f"{name}.toml").read_text(encoding="utf-8"))
        verifier, hidden = table.get("verifier", {}), dict[str, bytes]()
        if "suite" in table:
            verifier, hidden = suite(files=table["hidden"], **table["suite"])
        hidden |= {path: text.encode() for path, text in table.get("directory", {}).items()}
        if "like" in table:
            same = cls.read(table["like"])
            return cls(name, same.target, same.before, same.right, same.other, verifier, hidden)
        before = table["files"][table["target"]]
        solutions = (table[key] for key in ("reference", "other"))
        right, other = (text if isinstance(text, str) else before.replace(*text) for text in solutions)
        return cls(name, table["target"], table["files"], right, other, verifier, hidden)

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
    runner: str, files: Mapping[str, str], fail_to_pass: list[str], pass_to_pass: list[str], **more: object
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
        [start + name for name in fail_to_pass],
        [start + name for name in pass_to_pass],
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
