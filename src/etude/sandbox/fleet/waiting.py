"""Requests that are not placed yet: lines that are served in turns, each in the order in which its requests came.

A line holds one owner's requests; those pinned to a certain host form separate lines. So an owner with ten thousand
requests does not starve one with a single request, and a fork that waits for its host holds up nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from etude.sandbox.fleet.events import CreateRequested

Line = tuple[str, str]


@dataclass(slots=True)
class Pending:
    """A request that has not been answered yet, or whose boxes are still being made."""

    wanted: CreateRequested
    since: float
    attempt: int = 0
    tried: frozenset[str] = frozenset()
    host: str = ""
    """The host where its boxes are being made; empty while it waits."""
    searched: bool = False
    """Every host has been tried; from now on only those that gain room are."""
    claim: str = ""
    """The host that is kept free for it."""
    answered: bool = False
    """It was rejected while a host was still working on it."""

    @property
    def line(self) -> Line:
        return self.wanted.owner, self.wanted.pinned


class WaitingRoom:
    def __init__(self) -> None:
        self._lines: dict[Line, deque[Pending]] = {}  # The line whose turn is next comes first.
        self._fresh: dict[Line, None] = {}  # Lines whose first request has not been searched for yet.
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_fresh(self) -> bool:
        return bool(self._fresh)

    def add(self, pending: Pending, *, first: bool = False) -> None:
        """Adds a request; with `first`, at the front, since it had a place and lost it through no fault of its own."""
        requests = self._lines.setdefault(pending.line, deque())
        if first and requests:
            requests[0].searched = False  # It will miss the room that is freed while it is second in line.
        (requests.appendleft if first else requests.append)(pending)
        self._count += 1
        self._note_head(pending.line)

    def turns(self, *, everyone: bool) -> list[Line]:
        """Lines in the order of their turns. Without `everyone`, only those with something new to search for."""
        if everyone:
            return list(self._lines)
        return list(self._fresh) if len(self._fresh) == 1 else [line for line in self._lines if line in self._fresh]

    def head(self, line: Line) -> Pending:
        return self._lines[line][0]

    def found_nothing(self, pending: Pending) -> None:
        pending.searched = True
        self._note_head(pending.line)

    def search_again(self, pending: Pending) -> None:
        pending.searched = False
        self._note_head(pending.line)

    def take(self, line: Line) -> Pending:
        """Removes and returns the line's first request; the line's next turn comes after all others'."""
        requests = self._lines.pop(line)
        pending = requests.popleft()
        self._count -= 1
        if requests:
            self._lines[line] = requests
        self._note_head(line)
        return pending

    def remove(self, pending: Pending) -> None:
        requests = self._lines[pending.line]
        requests.remove(pending)
        self._count -= 1
        if not requests:
            del self._lines[pending.line]
        self._note_head(pending.line)

    def _note_head(self, line: Line) -> None:
        requests = self._lines.get(line)
        if requests and not requests[0].searched:
            self._fresh[line] = None
        else:
            self._fresh.pop(line, None)
