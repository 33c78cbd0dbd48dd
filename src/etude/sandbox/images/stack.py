"""Finds what a stack of layers shows at a path, by the rules of overlayfs. All code that reads or merges layers uses
this module.

The topmost entry of a name wins. Folders of several layers merge, down to the first opaque folder or to an entry that
is not a folder: a file, or a whiteout, which marks a deleted name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

OPAQUE = "user.overlay.opaque"


@dataclass(frozen=True, slots=True)
class VisibleEntry:
    """What a stack of layers shows under one name: a file, folders that are merged, or nothing."""

    paths: tuple[Path, ...] = ()
    """The one file, or the folders that are merged (topmost first). Empty if nothing is visible."""
    hides_below: bool = False
    """Whether entries of the same name further down are hidden, as by a file, whiteout or opaque folder."""


@dataclass(frozen=True, slots=True)
class Stack:
    layers: tuple[Path, ...]
    """The layers' folders, topmost first."""
    _known: dict[PurePosixPath, VisibleEntry] = field(default_factory=dict)

    def find(self, path: PurePosixPath) -> VisibleEntry:
        """Return what is visible at a path relative to the root. Links are not followed."""
        if path not in self._known:
            above = self.find(path.parent) if path.parts else None
            self._known[path] = find_in(above.paths, path.name) if above else VisibleEntry(self.layers)
        return self._known[path]


def find_in(folders: Sequence[Path], name: str) -> VisibleEntry:
    """Return what the merged folders (topmost first) show under a name."""
    found: list[Path] = []
    for folder in folders:
        path = folder / name
        try:
            info = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(info.st_mode):
            if not found and not is_whiteout(info):
                found.append(path)
            return VisibleEntry(tuple(found), hides_below=True)
        found.append(path)
        if is_opaque(path):
            return VisibleEntry(tuple(found), hides_below=True)
    return VisibleEntry(tuple(found))


def is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(folder: Path) -> bool:
    return OPAQUE in os.listxattr(folder) and os.getxattr(folder, OPAQUE) == b"y"


def make_whiteout(path: Path) -> None:
    """Mark a name as deleted from the layers below, by a device 0:0, the only device that ordinary users may make."""
    os.mknod(path, stat.S_IFCHR)


def make_opaque(folder: Path) -> None:
    os.setxattr(folder, OPAQUE, b"y")
