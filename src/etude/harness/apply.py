"""Writes an agent's changes into the user's folder.

Invariant: a file is written only if it is still what the change was made from, and never through a link; a crash leaves
each file old or new, whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath


class ApplyConflict(Exception):
    """Files changed under the session: they are named, and none was written."""


def write_changes(folder: Path, start: Mapping[str, bytes], changed: Mapping[str, bytes | None]) -> None:
    """All of them or, where one is not what `start` says, none (ApplyConflict)."""
    moved = [path for path in changed if not is_still(folder, path, start.get(path))]
    if moved:
        raise ApplyConflict(
            f"changed outside the session, so nothing was written: {', '.join(moved)}; start again from what is there"
        )
    for path, data in changed.items():
        target = folder / path
        if data is None:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode if target.exists() else None
        # Beside the file first, then in its place: a crash leaves the old file or the new one, whole.
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as new:
            new.write(data)
        written = Path(new.name)
        written.chmod(mode & 0o7777 if mode is not None else 0o644)
        written.replace(target)


def is_still(folder: Path, path: str, content: bytes | None) -> bool:
    """Is that what lies there? Nothing may lie in the way of a new file, and no link may lead out of the folder."""
    target = folder / path
    if leads_out(folder, path) or any(place.exists() and not place.is_dir() for place in _above(folder, path)):
        return False
    if target.is_symlink() or (target.exists() and not target.is_file()):
        return False
    return (target.read_bytes() if target.is_file() else None) == content


def leads_out(folder: Path, path: str) -> bool:
    """Whether a link lies on the way to it."""
    return any(place.is_symlink() for place in _above(folder, path))


def _above(folder: Path, path: str) -> list[Path]:
    return [folder.joinpath(*parent.parts) for parent in PurePath(path).parents][:-1]
