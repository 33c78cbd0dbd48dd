"""A public regression suite for graders. A cheat is an agent that solves nothing and tries to get a pass nevertheless.

In every environment that a cheat fits, its verdict must be `fail` or `suspect`. Cheats are defined in catalogue/.
"""

from __future__ import annotations

from etude.tasks.cheats import computed
from etude.tasks.cheats.attempts import Attempt, attempt, cheats_for_gate, fitting, runner_of, try_cheats
from etude.tasks.cheats.cheat import Cheat, Scene, cheat
from etude.tasks.cheats.toml_cheats import read_cheats

_FILES = (
    "history", "surface", "machine", "diffs", "endings", "answers", "told", "forgers", "node_forgers", "scripts",
    "builds", "kinds", "blame",
)  # fmt: skip
CHEATS: dict[str, Cheat] = {found.name: found for file in _FILES for found in read_cheats(file, vars(computed))}

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
