"""Builds the index of a folder: `python -m etude.harness.search FOLDER INDEX_FILE RIPGREP_PROGRAM`.

The process runs at low priority. It ends when its stdin is closed, so it never outlives the process that started it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.harness.search.file_state import file_state_of
from etude.harness.search.index import Index
from etude.harness.search.ripgrep import Ripgrep
from etude.harness.search.store import save


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(1)


@contextmanager
def _turn(place: Path) -> Iterator[bool]:
    """Hold the build lock of an index file, since several sessions may start builders at once. Yields whether another
    process built the index meanwhile."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = file_state_of(place)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield file_state_of(place) != before


if __name__ == "__main__":
    os.nice(10)
    threading.Thread(target=_end_with_input, daemon=True).start()
    root, place, program = os.fsencode(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    with _turn(place) as built:
        if not built:
            save(Index.build(root, Ripgrep(program).files(root)), root, place)
