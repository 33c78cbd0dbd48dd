"""Finds content that two collections share. The first collection is indexed and the second streamed, so only the first
must fit into memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from etude.tasks.overlap.items import Item, Print

PLACES = 5
"""Maximum number of items with the same content hash (print) that are recorded from the first of the two collections to
compare. Further items with that hash are not reported."""


@dataclass(frozen=True, slots=True)
class Leak:
    """One finding: content of one kind that an item of the first collection shares with an item of the second."""

    what: str
    """Kind of the shared content: task (its id), function (code without its numbers), instance (code with its numbers),
    code (a sequence of tokens) or text (a sequence of words)."""
    a: str
    """Name of the item of the first collection that has the shared content."""
    b: str
    """Name of the item of the second collection that has the shared content."""
    count: int
    """Number of content hashes (prints) that the two items share, counting only this leak's kind of content."""
    sample: str
    """Description of one piece of the shared content, such as a function's name, as the item of the second collection
    has it."""


def find_leaks(first: Iterable[Item], second: Iterable[Item], *, numbers: bool = False) -> list[Leak]:
    """Compare two collections of items. Return one leak for each pair of items that share content and each kind of
    content that they share, the largest leaks first. If many items of the first collection have the same content hash,
    only the first `PLACES` of them are paired. With `numbers`, functions count as equal only if their numbers are equal
    too."""
    other = "function" if numbers else "instance"
    places: dict[Print, list[str]] = defaultdict(list)
    for item in first:
        for mark in item.prints:
            if mark[0] != other and len(places[mark]) < PLACES:
                places[mark].append(item.where)
    leaks: list[Leak] = []
    for item in second:
        shared: dict[tuple[str, str], list[str]] = defaultdict(list)
        for mark, sample in item.prints.items():
            for where in places.get(mark, ()):
                shared[where, mark[0]].append(sample)
        leaks += [Leak(what, where, item.where, len(found), found[0]) for (where, what), found in shared.items()]
    return sorted(leaks, key=lambda leak: (-leak.count, leak.a, leak.b, leak.what))
