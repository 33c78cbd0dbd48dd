"""Builds the index of a folder: `python -m etude.harness.search FOLDER PLACE RIPGREP`. Gives way to other processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from etude.harness.search.index import Index
from etude.harness.search.ripgrep import Ripgrep
from etude.harness.search.store import save

if __name__ == "__main__":
    os.nice(10)
    root, place, program = os.fsencode(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    save(Index.build(root, Ripgrep(program).files(root)), root, place)
