"""Derives the need of a search pattern: a condition that holds for every file with a matching line.

A need says which strings the file must contain, ignoring case. Files without a match may meet it too. ANY is the need
that every file meets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from etude.harness.search.grams import GRAM, Hashes, fold, hashes
from etude.harness.search.regex import Choice, Node, Repeat, Sequence, Text, UnsupportedSyntax, literal, parse

MOST_LETTERS = 10_000
"""Maximum length of a pattern that is analysed; a pattern of a million characters would take minutes."""
MOST_OPTIONS = 24
"""Maximum number of strings that a part of the pattern is expanded to. Larger parts are split, or count as
wildcards."""
MOST_COPIES = 4
"""Maximum number of copies to which a repeated part of a pattern is expanded."""
MOST_LITERALS = 200


@dataclass(frozen=True, slots=True)
class Pattern:
    """A search pattern with ripgrep's options. A match is always within a line."""

    text: str
    fixed: bool = False
    ignore_case: bool = False
    word: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    """Condition that a file contains this string, ignoring the case of ASCII letters."""

    text: bytes
    hashes: Hashes = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class All:
    """Condition that a file meets all of `parts`."""

    parts: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True)
class Some:
    """Condition that a file meets at least one of `parts`."""

    parts: tuple[Need, ...]


Need = Literal | All | Some

ANY = All()


def need_of(pattern: Pattern) -> Need:
    """Return the pattern's need: a condition that every file with a match meets. Return ANY, which every file meets, if
    the pattern cannot be analysed, or its need would be empty or too large."""
    if len(pattern.text) > MOST_LETTERS:
        return ANY
    read: Callable[..., Node] = literal if pattern.fixed else parse
    try:
        need = _need(read(pattern.text, ignore_case=pattern.ignore_case))
    except UnsupportedSyntax:
        return ANY
    return need if len(list(literals(need))) <= MOST_LITERALS else ANY


def literals(need: Need) -> Iterable[Literal]:
    if isinstance(need, Literal):
        yield need
    else:
        for part in need.parts:
            yield from literals(part)


def _need(node: Node) -> Need:
    runs = _Runs()
    runs.add(node)
    return runs.end()


class _Runs:
    """Builds the need of a pattern (a condition that every file with a match meets). The pattern's nodes are added from
    left to right."""

    def __init__(self) -> None:
        self.current: frozenset[bytes] = frozenset({b""})
        """All strings that the nodes since the last cut can match in sequence. A cut is made at a wildcard, or where
        there would be too many strings. It empties `current`, and adds to `needs` that a file contains one of the
        strings."""
        self.needs: list[Need] = []
        """Conditions that a file with a match meets, from all nodes added so far except those whose strings are in
        `current`."""

    def add(self, node: Node) -> None:
        options = _options(node)
        if options is not None:
            self._extend(options)
        elif isinstance(node, Sequence):
            for part in node.parts:
                self.add(part)
        elif isinstance(node, Repeat) and node.least:
            copy = _options(node.part)
            if copy is None:
                self._cut()
                self.needs.append(_need(node.part))
            else:
                for _ in range(min(node.least, MOST_COPIES)):
                    self._extend(copy)
                self._cut()
                # The last copy is directly before the next node, so its strings are continued by that node's.
                self._extend(copy)
        else:
            self._cut()
            if isinstance(node, Choice):
                self.needs.append(_some(_need(option) for option in node.options))

    def end(self) -> Need:
        self._cut()
        return _all(self.needs)

    def _extend(self, options: frozenset[bytes]) -> None:
        if len(self.current) * len(options) > MOST_OPTIONS:
            self._cut()
        self.current = frozenset(a + b for a, b in itertools.product(self.current, options))

    def _cut(self) -> None:
        self.needs.append(_some(_literal(each) for each in self.current))
        self.current = frozenset({b""})


def _options(node: Node) -> frozenset[bytes] | None:
    if isinstance(node, Text):
        return node.options if len(node.options) <= MOST_OPTIONS else None
    if isinstance(node, Sequence):
        return _product([_options(part) for part in node.parts])
    if isinstance(node, Choice):
        each = [_options(option) for option in node.options]
        union = frozenset().union(*(one for one in each if one is not None))
        return union if None not in each and len(union) <= MOST_OPTIONS else None
    if isinstance(node, Repeat) and node.most is not None and node.most <= MOST_COPIES:
        copy = _options(node.part)
        copies = [_product([copy] * count) for count in range(node.least, node.most + 1)]
        union = frozenset().union(*(one for one in copies if one is not None))
        return union if copies and None not in copies and len(union) <= MOST_OPTIONS else None
    return None


def _product(parts: list[frozenset[bytes] | None]) -> frozenset[bytes] | None:
    found = frozenset({b""})
    for part in parts:
        if part is None or len(found) * len(part) > MOST_OPTIONS:
            return None
        found = frozenset(a + b for a, b in itertools.product(found, part))
    return found


def _literal(text: bytes) -> Need:
    folded = fold(text)
    return Literal(folded, hashes(folded)) if len(folded) >= GRAM else ANY


def _all(parts: Iterable[Need]) -> Need:
    flat: list[Need] = []
    for part in parts:
        flat += part.parts if isinstance(part, All) else [part]
    kept = tuple(dict.fromkeys(flat))
    return kept[0] if len(kept) == 1 else All(kept)


def _some(parts: Iterable[Need]) -> Need:
    kept = tuple(dict.fromkeys(parts))
    if ANY in kept:
        return ANY
    return kept[0] if len(kept) == 1 else Some(kept)
