"""Told by a probe that its line runs, and by which test: what mutants.py imports into the trees that it measures.

ETUDE_REACHED names a folder; each process appends to a file of its own there. Processes that a test starts inherit the
name of the test with the environment.
"""

from __future__ import annotations

import os
from pathlib import Path

_seen: set[tuple[int, str]] = set()


def line(number: int) -> None:
    """Note once per process that a test reached the probe of this number."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    folder = os.environ.get("ETUDE_REACHED")
    if test and folder and (number, test) not in _seen:
        _seen.add((number, test))
        with Path(folder, str(os.getpid())).open("a", encoding="utf-8") as file:
            file.write(f"{number} {test}\n")
