"""A public regression suite for graders: cheats, agents that solve nothing and try to be graded as if they did.

Each must end as fail or suspect, in every environment that it fits. Most are written in catalogue/, and those that
build or review something are functions.
"""

from __future__ import annotations

from etude.tasks.cheats import builds, computed, kinds
from etude.tasks.cheats.attempts import Attempt, attempt, cheats_for_gate, fitting, runner_of, try_cheats
from etude.tasks.cheats.cheat import Cheat, Scene, cheat
from etude.tasks.cheats.reading import read_cheats

_FILES = ("history", "surface", "machine", "diffs", "endings", "answers", "forgers", "node_forgers", "scripts")
_WRITTEN = [found for file in _FILES for found in read_cheats(file, vars(computed))]
_MADE = [found for file in (builds, kinds) for found in vars(file).values() if isinstance(found, Cheat)]
CHEATS: dict[str, Cheat] = {found.name: found for found in (*_WRITTEN, *_MADE)}

__all__ = [
    "CHEATS",
    "Attempt",
    "Cheat",
    "Scene",
    "attempt",
    "cheat",
    "cheats_for_gate",
    "fitting",
    "runner_of",
    "try_cheats",
]
