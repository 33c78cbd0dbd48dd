"""What a stack of layers shows, by the rules of overlayfs. All code that reads or merges layers uses this.

The topmost entry of a name wins. Folders of several layers merge, down to the first opaque one or to an entry that is
no folder: a file, or a whiteout, which marks a deleted name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

OPAQUE = "user.overlay.opaque"


@dataclass(frozen=True, slots=True)
class Sight:
    """What is visible under one name, and where it lies."""

    places: tuple[Path, ...] = ()
    """One file, or the merged folders, topmost first; empty if nothing is visible."""
    closed: bool = False
    """Whether layers further below are hidden."""


@dataclass(frozen=True, slots=True)
class Stack:
    layers: tuple[Path, ...]
    """Topmost first."""
    _known: dict[PurePosixPath, Sight] = field(default_factory=dict)

    def look(self, path: PurePosixPath) -> Sight:
        """What is visible at a path relative to the root; links are not followed."""
        if path not in self._known:
            above = self.look(path.parent) if path.parts else None
            self._known[path] = look_in(above.places, path.name) if above else Sight(self.layers)
        return self._known[path]


def look_in(folders: Sequence[Path], name: str) -> Sight:
    """What the merged folders show under a name."""
    found: list[Path] = []
    for folder in folders:
        place = folder / name
        try:
            info = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(info.st_mode):
            if not found and not is_whiteout(info):
                found.append(place)
            return Sight(tuple(found), closed=True)
        found.append(place)
        if is_opaque(place):
            return Sight(tuple(found), closed=True)
    return Sight(tuple(found))


def is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(folder: Path) -> bool:
    return OPAQUE in os.listxattr(folder) and os.getxattr(folder, OPAQUE) == b"y"


def make_whiteout(place: Path) -> None:
    """A whiteout is the character device 0:0. It opens nothing: the one device that ordinary users may make."""
    os.mknod(place, stat.S_IFCHR)


def make_opaque(folder: Path) -> None:
    os.setxattr(folder, OPAQUE, b"y")
