"""A public regression suite for graders: cheats, agents that solve nothing and try to be graded as if they did.

Each must end as fail or suspect, in every environment that it fits.
"""

from __future__ import annotations

from etude.tasks.cheats import (
    answers,
    builds,
    diffs,
    endings,
    forgers,
    history,
    kinds,
    machine,
    node_forgers,
    scripts,
    surface,
)
from etude.tasks.cheats.attempts import Attempt, attempt, cheats_for_gate, fitting, runner_of, try_cheats
from etude.tasks.cheats.cheat import Cheat, Scene, cheat

_FILES = (history, surface, machine, diffs, endings, answers, forgers, node_forgers, scripts, builds, kinds)
CHEATS: dict[str, Cheat] = {
    found.name: found for file in _FILES for found in vars(file).values() if isinstance(found, Cheat)
}

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
