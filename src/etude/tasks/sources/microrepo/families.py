"""The function families: each is a template of one small function with its inputs, and comments that say what it does.

A family's `split_group` alone decides its split, so it may never change. Some families are hand-written
(families.toml); most are composed from parts (composed.py). The comments name every choice that the lines under them
make (constants, variables, the direction of a comparison), so that each injected bug can be recognised from them.

A template has these slots (placeholders). For names of variables: x and y (numbers), n (a small number), xs (a list of
numbers) and v (one of them), ws (a list of words) and w (one of them), t (a local result), i (an index), lo and hi (a
pair of bounds), p and q (flags). For constants: j (2-4), k and m (2-9), c and b (c < b), g0, g1 and g2 (words).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from textwrap import indent

from etude.tasks.sources.microrepo.composed import combinations
from etude.tasks.task import Split, split_of


@dataclass(frozen=True, slots=True)
class Family:
    """A template of one small function, in which names and constants are placeholders."""

    name: str
    verbs: tuple[str, ...]
    """First words of the function's name."""
    inputs: tuple[str, ...]
    """The template's placeholders for the function's parameters, in order. They decide the types (see function.py)."""
    body: str
    """Source of the function without the def line, indented once."""
    split_group: str
    """Name that decides the split. Two families have the same one if a single bug can turn one into the other."""

    @property
    def split(self) -> Split:
        return split_of(self.split_group)


def _family(name: str, verbs: str, inputs: str, body: str, split_group: str = "") -> Family:
    return Family(name, tuple(verbs.split()), tuple(inputs.split()), indent(body, "    "), split_group or name)


_BY_HAND = tomllib.loads((resources.files(__package__) / "families.toml").read_text(encoding="utf-8"))
FAMILIES: tuple[Family, ...] = (
    *(_family(name, **table) for name, table in _BY_HAND.items()),
    *(_family(c.name, c.core.verbs, c.core.inputs, "\n".join(c.lines), c.split_group) for c in combinations()),
)


@cache
def families_of(split: Split) -> tuple[Family, ...]:
    return tuple(family for family in FAMILIES if family.split is split)
