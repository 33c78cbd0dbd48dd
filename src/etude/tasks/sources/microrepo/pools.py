"""Pools of functions to draw from. A pool has the functions of some families or, if training uses these families, only
their instances of one split.

An instance is a function with its numbers; names and strings do not count. A hash of the instance alone decides its
split, whether or not the function has a bug. So pools of two splits never draw the same instance.
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
    families: tuple[Family, ...]
    side: Split | None = None
    """The split that a function of this pool must belong to, by a hash of its code with its numbers; None for any."""

    def admits(self, source: str) -> bool:
        """Return whether the function with this source belongs to the pool's split, by a hash of its code with its
        numbers. Its family is not checked."""
        return self.side is None or side_of(source) is self.side

    def draw(self, rng: random.Random, taken: Collection[str] = ()) -> Function:
        """Return a random correct function whose name is not in `taken`."""
        while True:
            function = draw_function(rng.choice(self.families), rng, taken)
            if self.admits(function.source):
                return function

    def keeping(self, wanted: Callable[[Family], bool]) -> Pool:
        return replace(self, families=tuple(family for family in self.families if wanted(family)))


def pool_of(split: Split, *, family_seen: bool = True) -> Pool:
    """Return the pool of functions for a split. With `family_seen`, these are of the families used in training, but
    only the functions that a hash assigns to this split. Otherwise they are all functions of the split's own
    families."""
    return Pool(families_of(Split.TRAIN), split) if family_seen else Pool(families_of(split))


def side_of(source: str) -> Split:
    """Return the split to which a hash of the function's normalised text assigns it. The text is hashed rather than the
    syntax tree, because parsing would take thirty times as long. For functions that the families' templates make, two
    normalised texts are equal exactly if the syntax trees are equal up to names."""
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
