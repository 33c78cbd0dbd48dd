"""Builds the index of a folder: `python -m etude.harness.search FOLDER PLACE RIPGREP`. Gives way to other processes,
and ends when its input does: with whoever asked for it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from etude.harness.search.index import Index
from etude.harness.search.ripgrep import Ripgrep
from etude.harness.search.store import save


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    os.nice(10)
    threading.Thread(target=_end_with_input, daemon=True).start()
    root, place, program = os.fsencode(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    save(Index.build(root, Ripgrep(program).files(root)), root, place)
