"""Writes an agent's changes into the user's folder.

Invariant: a file is written only if it is still what the change was made from, and never through a symlink. A crash
leaves each file complete, either old or new, and repeating the call writes the rest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath


class ApplyConflict(Exception):
    """Files changed outside the session: the message names them, and nothing was written."""


def write_changes(folder: Path, start: Mapping[str, bytes], changed: Mapping[str, bytes | None]) -> None:
    """Write all changes, or none if ApplyConflict is raised because a file is no longer what it was at the start. A
    file that already has its new contents is left alone."""
    changed = {path: data for path, data in changed.items() if not _is_still(folder, path, data)}
    moved = [path for path in changed if not _is_still(folder, path, start.get(path))]
    if moved:
        raise ApplyConflict(
            f"changed outside the session, so nothing was written: {', '.join(moved)}; start again from what is there"
        )
    aside: dict[str, Path] = {}
    try:
        # Write all new files beside their targets before replacing any: a crash leaves each file complete, either old
        # or new, and a full disk leaves all of them old.
        for path, data in changed.items():
            if data is not None:
                aside[path] = _beside(folder / path, data)
        for path, data in changed.items():
            if data is None:
                (folder / path).unlink()
            else:
                aside[path].replace(folder / path)
                del aside[path]
    finally:
        for new in aside.values():
            new.unlink(missing_ok=True)


def in_the_way(folder: Path, path: str) -> str:
    """Why no file can be written at this path, or "". Symlinks are refused: they may lead out of the folder."""
    target = folder / path
    for place in _above(folder, path):
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            return f"cannot be written: {place.relative_to(folder)} is no folder now"
    if target.is_symlink() or (target.exists() and not target.is_file()):
        return "is no file now"
    return ""


def leads_out(folder: Path, path: str) -> bool:
    """Whether one of the path's parent folders is a symlink."""
    return any(place.is_symlink() for place in _above(folder, path))


def _beside(target: Path, data: bytes) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode if target.exists() else None
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".etude-", delete=False) as new:
        try:
            new.write(data)
            new.flush()
        except OSError:
            Path(new.name).unlink()
            raise
    written = Path(new.name)
    written.chmod(mode & 0o7777 if mode is not None else 0o644)
    return written


def _is_still(folder: Path, path: str, content: bytes | None) -> bool:
    """Whether the file has this content now; None means that there is no file."""
    target = folder / path
    return not in_the_way(folder, path) and (target.read_bytes() if target.is_file() else None) == content


def _above(folder: Path, path: str) -> list[Path]:
    return [folder.joinpath(*parent.parts) for parent in PurePath(path).parents][:-1]
