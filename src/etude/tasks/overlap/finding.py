"""Finds content that items of two collections (tasks, documents or traces) share. The first collection is indexed and
the second streamed, so only the first must fit in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from etude.tasks.overlap.items import Item, Print

PLACES = 5
"""Maximum number of items of the first collection that are remembered, and so reported, for one print (the hash of a
piece of content)."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Content of one kind that an item of the first collection shares with one of the second."""

    what: str
    """Kind of the shared content: "task" (an id), "function" (code without its numbers), "instance" (code with its
    numbers), "code" (tokens) or "text" (words)."""
    a: str
    b: str
    count: int
    """Number of prints (hashes of pieces of content) of this kind that the two items share."""
    sample: str
    """Label of one shared piece in the item of the second collection: a task's id, a function's name, a line number, or
    the words themselves."""


def find_leaks(first: Iterable[Item], second: Iterable[Item], *, numbers: bool = False) -> list[Leak]:
    """Return one leak per pair of items and kind of content that they share, the largest leaks first. Functions are
    compared without the number literals in them or, with `numbers`, including these."""
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
