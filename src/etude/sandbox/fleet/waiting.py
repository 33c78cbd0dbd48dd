"""Requests without a place yet: lines that are served in turns, each in the order its requests came.

A line is one owner's requests, those for one certain host apart. So an owner with ten thousand requests does not starve
one with a single request, and a fork that waits for its host holds up nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from etude.sandbox.fleet.events import CreateRequested

Line = tuple[str, str]


@dataclass(slots=True)
class Pending:
    """A request on its way from being asked to being answered."""

    wanted: CreateRequested
    since: float
    attempt: int = 0
    tried: frozenset[str] = frozenset()
    host: str = ""
    """Where it is being made; empty while it waits."""
    searched: bool = False
    """Every host was looked at; from now on only those that gained room need be."""
    claim: str = ""
    """The host that is kept free for it."""
    answered: bool = False
    """Rejected while a host was still at work on it."""

    @property
    def line(self) -> Line:
        return self.wanted.owner, self.wanted.pinned


class WaitingRoom:
    def __init__(self) -> None:
        self._lines: dict[Line, deque[Pending]] = {}  # the line whose turn is next comes first
        self._fresh: dict[Line, None] = {}  # lines whose first request has not been searched for
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_fresh(self) -> bool:
        return bool(self._fresh)

    def add(self, pending: Pending, *, first: bool = False) -> None:
        """`first`: it had a place, and lost it through no fault of its own."""
        requests = self._lines.setdefault(pending.line, deque())
        if first and requests:
            requests[0].searched = False  # what frees up while it is second in line passes it by
        (requests.appendleft if first else requests.append)(pending)
        self._count += 1
        self._note_head(pending.line)

    def turns(self, *, everyone: bool) -> list[Line]:
        """Lines in the order of their turns; not `everyone`: only those with something new to search for."""
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
        """Its first request; its next turn comes after all others'."""
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
