"""Writes an agent's changes into the user's folder.

Invariant: a file is written only if it still has the contents that the agent started from, and never through a symlink.
After a crash in `write_changes` each file is complete, either old or new. Another call writes the remaining files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath


class ApplyConflict(Exception):
    """Changes cannot be applied to the folder, usually because its files have changed. Nothing was written."""


def write_changes(folder: Path, start: Mapping[str, bytes], changed: Mapping[str, bytes | None]) -> None:
    """Write all changes into the folder. `start` has the contents that the agent started from; None in `changed`
    deletes a file. Raises ApplyConflict, before anything is written, if a file has neither its new contents nor those
    in `start`."""
    changed = {path: data for path, data in changed.items() if not _is_still(folder, path, data)}
    moved = [path for path in changed if not _is_still(folder, path, start.get(path))]
    if moved:
        raise ApplyConflict(
            f"changed outside the session, so nothing was written: {', '.join(moved)}; start again from the current "
            "files"
        )
    temporary: dict[str, Path] = {}
    try:
        # All new contents are written to temporary files before any target is replaced: a crash leaves each file
        # complete, either old or new, and a full disk leaves all of them old.
        for path, data in changed.items():
            if data is not None:
                temporary[path] = _beside(folder / path, data)
        for path, data in changed.items():
            if data is None:
                (folder / path).unlink()
            else:
                temporary[path].replace(folder / path)
                del temporary[path]
    finally:
        for new in temporary.values():
            new.unlink(missing_ok=True)


def write_obstacle(folder: Path, path: str) -> str:
    """Return the reason why no file can be written at this path, or "". Symlinks count as obstacles, since they may
    lead out of the folder."""
    target = folder / path
    for parent in _above(folder, path):
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            return f"cannot be written: {parent.relative_to(folder)} is not a folder any more"
    if target.is_symlink() or (target.exists() and not target.is_file()):
        return "is not a file any more"
    return ""


def has_symlink_parent(folder: Path, path: str) -> bool:
    return any(parent.is_symlink() for parent in _above(folder, path))


def _beside(target: Path, data: bytes) -> Path:
    """Write contents to a temporary file in the target's folder, with the target's file mode, and return its path."""
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
    target = folder / path
    return not write_obstacle(folder, path) and (target.read_bytes() if target.is_file() else None) == content


def _above(folder: Path, path: str) -> list[Path]:
    """Return the parent folders of a path, up to but without `folder`, deepest first."""
    return [folder.joinpath(*parent.parts) for parent in PurePath(path).parents][:-1]
