"""Detects changes of those ignore rules of a folder that are stored outside the folder or in a `.git`.

These few files are checked before each search. All other ignore files are in the folder, where they are watched like
any file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")
_EXCLUDES = re.compile(r"^\s*excludesfile\s*=\s*\"?\s*(\S+?)\s*\"?\s*$", re.IGNORECASE | re.MULTILINE)

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Path, size, mtime in ns and inode of each path outside the root, or in a `.git`, that can contain ignore rules."""


def fingerprint(root: bytes, repositories: Collection[bytes] = ()) -> Fingerprint:
    """Return a value that changes whenever the ignore rules outside the root, or in a `.git` folder, change.

    `repositories` are the folders below the root that have their own `.git`.
    """
    return tuple(_known(path) for path in _files(Path(os.fsdecode(root)), repositories))


def _files(root: Path, repositories: Collection[bytes]) -> Iterator[Path]:
    """Yield all paths outside the root, or in a `.git`, that can contain ignore rules for it, existing or not."""
    for folder in root.parents:
        yield from (folder / name for name in (*IGNORE_FILES, ".git"))
    for folder in (root, *root.parents, *(root / os.fsdecode(each) for each in sorted(repositories))):
        if (git := folder / ".git").exists():
            yield git_folder(git) / "info" / "exclude"
    home = Path(os.environ.get("HOME") or "/")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "git"
    yield config / "ignore"
    for file in (home / ".gitconfig", config / "config"):
        yield file
        yield from (Path(each.replace("~", str(home), 1)) for each in _EXCLUDES.findall(_text(file)))


def git_folder(git: Path) -> Path:
    """Return the git folder that a `.git` stands for. For a worktree, whose `.git` is a file, that is the folder shared
    with the main repository."""
    if git.is_dir():
        return git
    there = git.parent / _text(git).removeprefix("gitdir:").strip()
    common = _text(there / "commondir").strip()
    return there / common if common else there


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _known(path: Path) -> tuple[str, int, int, int]:
    """Return a path's entry in a Fingerprint. The size is -1 if the path does not exist, and all numbers are 0 for a
    folder, of which only the existence matters."""
    try:
        found = path.stat()
    except OSError:
        return str(path), -1, 0, 0
    # Of a folder (.git) only its existence matters; its times change with its contents.
    return (str(path), 0, 0, 0) if path.is_dir() else (str(path), found.st_size, found.st_mtime_ns, found.st_ino)
