"""Ignore rules outside a folder, or in its `.git`, that decide which of its files ripgrep searches.

The ignore files inside the folder are watched like all other files; these few are checked before each search.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")
_EXCLUDES = re.compile(r"^\s*excludesfile\s*=\s*\"?\s*(\S+?)\s*\"?\s*$", re.IGNORECASE | re.MULTILINE)

Fingerprint = tuple[tuple[str, int, int, int], ...]


def fingerprint(root: bytes, repositories: Collection[bytes] = ()) -> Fingerprint:
    """Fingerprint of these files; equal as long as none of them changed."""
    return tuple(_known(path) for path in _files(Path(os.fsdecode(root)), repositories))


def _files(root: Path, repositories: Collection[bytes]) -> Iterator[Path]:
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
    """The real git folder. A worktree's `.git` is a file that points to it, and what all worktrees share is where its
    `commondir` says."""
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
    try:
        found = path.stat()
    except OSError:
        return str(path), -1, 0, 0
    # A folder's times change with its contents; only its existence matters here.
    return (str(path), 0, 0, 0) if path.is_dir() else (str(path), found.st_size, found.st_mtime_ns, found.st_ino)
