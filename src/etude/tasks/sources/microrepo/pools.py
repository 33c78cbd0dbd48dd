"""Pools of functions to draw from. A pool has functions of some families. If these families are used in training, the
pool has only the instances of one split.

An instance is a function with its numbers; names and strings do not count. The hash of an instance assigns it to a
split, whether the function is correct or has a bug, and whatever family and bug it came from. So pools of two splits
never draw the same instance.
"""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from etude.tasks.sources.microrepo.families import Family, families_of
from etude.tasks.sources.microrepo.function import Function, draw_function
from etude.tasks.task import Split, split_of

_WORD = re.compile(r"'[^']*'|[A-Za-z_]\w*")
_COMMENT = re.compile(r" *#.*\n")
_KEYWORDS = frozenset(keyword.kwlist)


@dataclass(frozen=True, slots=True)
class Pool:
    """Functions to draw from: all functions of some families, or only those whose instance belongs to one split. A
    function's instance is its code with its numbers, whatever its names.
    """

    families: tuple[Family, ...]
    side: Split | None = None
    """The split that a drawn function's instance (its code with its numbers) must belong to; None for any split."""

    def admits(self, source: str) -> bool:
        """Return whether the pool's split allows this function: its instance (its code with its numbers) must belong to
        that split. The function's family is not checked."""
        return self.side is None or side_of(source) is self.side

    def draw(self, rng: random.Random, taken: Collection[str] = ()) -> Function:
        """Return a random correct function of the pool whose name is not in `taken`."""
        while True:
            function = draw_function(rng.choice(self.families), rng, taken)
            if self.admits(function.source):
                return function

    def keeping(self, wanted: Callable[[Family], bool]) -> Pool:
        """Return a copy of the pool with only the families for which `wanted` is true."""
        return replace(self, families=tuple(family for family in self.families if wanted(family)))


def pool_of(split: Split, *, family_seen: bool = True) -> Pool:
    """Return the pool of functions for a split. With `family_seen`, it has functions of the families used in training,
    but only those whose instance (code with its numbers) belongs to this split. Otherwise, it has all functions of the
    families that only this split has.
    """
    return Pool(families_of(Split.TRAIN), split) if family_seen else Pool(families_of(split))


def side_of(source: str) -> Split:
    """Return the split of a function's instance (its code with its numbers, whatever its names). The function must be
    made from Étude's templates. The split follows from a hash of the normalised text, not of the syntax tree, because
    parsing would take thirty times as long. For functions from the templates, two normalised texts are equal exactly if
    the syntax trees are equal up to names.
    """
    return split_of(f"instance/1:{normal_form(source)}")


def normal_form(source: str) -> str:
    """Return the source with names numbered, strings emptied and comments removed."""
    names: dict[str, str] = {}

    def word(match: re.Match[str]) -> str:
        text = match[0]
        if text in _KEYWORDS:
            return text
        return "''" if text.startswith("'") else names.setdefault(text, f"n{len(names)}")

    return _WORD.sub(word, _COMMENT.sub("", source))
