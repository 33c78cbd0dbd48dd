"""A folder for targets that write files. It is made by the campaign and removed with everything in it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etude.sandbox.images.owners import remove_tree

_places: list[Path] = []


@contextlib.contextmanager
def place_for_files() -> Iterator[None]:
    """Make the folder, in memory if the files there keep the attributes that layers need."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="etude-fuzz-", dir=memory if _keeps_attributes(memory) else None))
    _places.append(made)
    try:
        yield
    finally:
        _places.pop()
        remove_tree(made)


def fresh_folder(name: str) -> Path:
    """Return an empty folder of this name, without what an earlier input has left in it."""
    path = _places[-1] / name
    remove_tree(path)
    path.mkdir()
    return path


def _keeps_attributes(memory: Path) -> bool:
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=memory) as file:
        os.setxattr(file.name, "user.overlay.opaque", b"y")
        return True
    return False
