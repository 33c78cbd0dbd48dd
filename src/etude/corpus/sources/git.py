"""Files of a commit, read from git's objects: no checkout, no hook, no filter, and nothing is fetched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from etude.corpus.cleaning import is_licence_file, nearest
from etude.corpus.document import Found, Wanted
from etude.corpus.errors import CorpusError
from etude.corpus.sources.folders import PART_BYTES, PART_FILES, Licences, licences_of

_REGULAR = (b"100644", b"100755")
_ABBREVIATED = 12


@dataclass(frozen=True, slots=True)
class GitPart:
    repository_path: Path
    commit: str
    files: tuple[tuple[str, int, str], ...]
    """Path, bytes and object name of each file."""
    repository: str
    licences: Licences

    def size(self, wanted: Wanted) -> int:
        return sum(size for name, size, _ in self.files if wanted(name, size))

    @property
    def origin(self) -> str:
        return f"{self.repository} {self.commit[:_ABBREVIATED]}"

    def read(self, wanted: Wanted) -> Iterator[Found]:
        licences = dict(self.licences)
        with blobs(self.repository_path) as content:
            for name, size, blob in self.files:
                data = content(blob) if wanted(name, size) else None
                yield Found(name, data, size, self.origin, self.repository, "", nearest(name, licences))


def is_repository(path: Path) -> bool:
    """Whether this folder itself is a repository, with or without a working tree; not whether it lies in one."""
    return (path / ".git").exists() or all((path / name).exists() for name in ("HEAD", "objects", "refs"))


def git_parts(path: Path, revision: str, repository: str) -> Iterator[GitPart]:
    """Yield the regular files of a commit, in git's order of paths. Links and submodules are left out."""
    try:
        commit = run_git(path, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    except CorpusError as error:
        raise CorpusError(f"{path} has no revision {revision!r}: {error}") from error
    every: list[tuple[str, int, str]] = []
    for line in run_git(path, "ls-tree", "-r", "-l", "-z", "--full-tree", commit).split(b"\0"):
        about, _, name = line.partition(b"\t")
        mode, *_, blob, size = about.split() or (b"", b"", b"")
        if mode in _REGULAR:
            every.append((name.decode("utf-8", "replace"), int(size), blob.decode()))
    with blobs(path) as content:
        licences = licences_of({name: content(blob) for name, size, blob in every if is_licence_file(name, size)})
    first, held = 0, 0
    for place, (_, length, _) in enumerate(every, 1):
        held += length
        if held >= PART_BYTES or place - first >= PART_FILES or place == len(every):
            yield GitPart(path, commit, tuple(every[first:place]), repository, licences)
            first, held = place, 0


@contextmanager
def blobs(path: Path) -> Iterator[Callable[[str], bytes]]:
    """Yield a function that returns the bytes of an object, named by its id or as COMMIT:PATH."""
    with subprocess.Popen(
        _command(path, "cat-file", "--batch"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def content(blob: str) -> bytes:
            stdin.write(f"{blob}\n".encode())
            stdin.flush()
            head = stdout.readline().split()
            if len(head) != 3 or head[-1] == b"missing":
                raise CorpusError(f"{path} lacks the object {blob}: it is damaged, or a partial clone")
            return stdout.read(int(head[2]) + 1)[:-1]

        try:
            yield content
        finally:
            stdin.close()


def run_git(path: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(_command(path, *arguments), capture_output=True, check=False, env=_environment())
    except FileNotFoundError as error:
        raise CorpusError("corpus.code reads git repositories with the command git, which is not installed") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CorpusError(f"git says {said[0].removeprefix('fatal: ')!r}" if said else "git failed")
    return done.stdout


def _command(path: Path, *arguments: str) -> list[str]:
    return ["git", "--no-replace-objects", "-C", str(path), *arguments]


def _environment() -> dict[str, str]:
    """Return the environment without git's own variables, which would name another repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
