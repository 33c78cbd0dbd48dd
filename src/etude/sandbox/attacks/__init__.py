"""Attacks on sandboxes, by the classes of the threat model: each is tried in every mode that promises its class.

The contract suite, the benchmark `attacks` and `etude sandbox attack` share them.
"""

from etude.sandbox.attacks import escapes, outside, path_races, requests, resources
from etude.sandbox.attacks.attack import Attack, NotTried, Scene, attack
from etude.sandbox.attacks.classes import CLASSES, AttackClass
from etude.sandbox.attacks.running import Cell, Outcome, cells, run_attacks, table, try_attack

_MODULES = (path_races, escapes, requests, resources, outside)
_MADE = (*escapes.INSIDE_ATTACKS, *resources.TABLE_ATTACKS, *resources.BUFFER_ATTACKS)
ATTACKS: dict[str, Attack] = {
    found.name: found
    for found in (*_MADE, *(each for module in _MODULES for each in vars(module).values() if isinstance(each, Attack)))
}

__all__ = [
    "ATTACKS",
    "CLASSES",
    "Attack",
    "AttackClass",
    "Cell",
    "NotTried",
    "Outcome",
    "Scene",
    "attack",
    "cells",
    "run_attacks",
    "table",
    "try_attack",
]
