"""Finds what two sides share. The first is indexed, the second streams by: only one has to fit into memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from etude.tasks.overlap.items import Item, Print

PLACES = 5
"""Items of the first side that one print is traced to: what stands in a thousand places is told of a few."""


@dataclass(frozen=True, slots=True)
class Leak:
    what: str
    """The kind of what is shared: task, function or instance, code or text."""
    a: str
    """Where in the first."""
    b: str
    """Where in the second."""
    count: int
    """How much of that kind."""
    sample: str
    """One of it, as the second side has it."""


def find_leaks(first: Iterable[Item], second: Iterable[Item], *, numbers: bool = False) -> list[Leak]:
    """Every pair of items that share something, a leak for each kind of it, the largest first. `numbers`: functions are
    the same only if theirs are."""
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
