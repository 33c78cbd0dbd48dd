"""Reads the files of a commit from a local clone, whose settings and hooks have no effect."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from etude.tasks.formats.swebench.instance import Instance, UnsupportedRow
from etude.tasks.task import TaskError

_GIT = ("git", "--no-replace-objects", "-c", "safe.directory=*", "-c", "core.fsmonitor=false")
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class Clones:
    folder: Path
    """A clone, or a folder of clones named owner__name, owner/name or name."""

    def files(self, instance: Instance, *, links: bool = False) -> dict[str, bytes]:
        """Return the files of the instance's base commit, without submodules, as in a plain clone. A symbolic link
        raises UnsupportedRow, or with `links` is left out, because the task's image contains it."""
        if not instance.base_commit:
            raise UnsupportedRow(
                f"{instance.place}: base_commit: expected a commit, which identifies the files of {instance.repo}"
            )
        clone = self._clone(instance)
        entries = _git(instance, clone, "ls-tree", "-r", "-z", "--full-tree", f"{instance.base_commit}^{{commit}}")
        paths: list[str] = []
        objects: list[bytes] = []
        for entry in entries.split(b"\0")[:-1]:
            facts, _, name = entry.partition(b"\t")
            mode, kind, identity = facts.split(b" ")
            path = os.fsdecode(name)
            if mode == b"120000" and links:
                continue
            if mode == b"120000":
                raise UnsupportedRow(
                    f"{instance.place}: {path} is a link at {instance.base_commit[:12]}, which files over the host's "
                    "base cannot contain: name an image (--image)"
                )
            if kind == b"blob":
                paths.append(path)
                objects.append(identity)
        contents = _git(instance, clone, "cat-file", "--batch", "--buffer", given=b"\n".join(objects) + b"\n")
        return dict(zip(paths, _blobs(contents, len(paths)), strict=True))

    def _clone(self, instance: Instance) -> Path:
        owner, name = instance.repo.split("/")
        places = [self.folder / f"{owner}__{name}", self.folder / owner / name, self.folder / name, self.folder]
        for place in places:
            if (place / ".git").exists() or ((place / "HEAD").is_file() and (place / "objects").is_dir()):
                return place
        raise TaskError(f"{self.folder}: expected a clone of {instance.repo}, or a folder {owner}__{name} that is one")


def _git(instance: Instance, clone: Path, *words: str, given: bytes = b"") -> bytes:
    try:
        done = subprocess.run(
            [*_GIT, "-C", str(clone), *words], input=given, capture_output=True, env=os.environ | _ENVIRONMENT
        )
    except FileNotFoundError as error:
        raise TaskError("git: expected the program on this machine, to read a clone: install it") from error
    if done.returncode:
        last_line = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        raise TaskError(
            f"{instance.place}: base_commit: expected a commit of {clone}, found {instance.base_commit!r}: {last_line}"
        )
    return done.stdout


def _blobs(data: bytes, count: int) -> list[bytes]:
    """Parse the output of `git cat-file --batch`: each blob follows a line with its identity, kind and size."""
    found, at = [], 0
    for _ in range(count):
        end = data.index(b"\n", at)
        size = int(data[at:end].split(b" ")[2])
        found.append(data[end + 1 : end + 1 + size])
        at = end + size + 2
    return found
