"""Finds content that two collections share. The first is indexed and the second streamed: only the first must fit in
memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from etude.tasks.overlap.items import Item, Print

PLACES = 5
"""Maximum number of items of the first collection that are reported for one print."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Content of one kind that an item of the first collection shares with one of the second."""

    what: str
    """Kind of the shared content: "task" (an id), "function" (code without its numbers), "instance" (code with its
    numbers), "code" (tokens) or "text" (words)."""
    a: str
    b: str
    count: int
    """Number of prints of this kind that the two items share."""
    sample: str
    """One piece of the shared content, such as a function's name, as the second collection has it."""


def find_leaks(first: Iterable[Item], second: Iterable[Item], *, numbers: bool = False) -> list[Leak]:
    """Return one leak per pair of items and kind of content that they share, the largest leaks first. With `numbers`,
    functions are equal only if their numbers are too."""
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
