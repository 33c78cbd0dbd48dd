"""Timers, one per kind and key. Setting an earlier time replaces the timer; setting a later one has no effect."""

from __future__ import annotations

from heapq import heappop, heappush


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, str]] = []
        self._armed: dict[tuple[str, str], float] = {}
        self._count = 0

    def set(self, moment: float, kind: str, key: str = "") -> None:
        armed = self._armed.get((kind, key))
        if armed is None or moment < armed:
            self._armed[kind, key] = moment
            self._count += 1  # Of two timers that are due together, the one set first comes first.
            heappush(self._heap, (moment, self._count, kind, key))

    @property
    def next_moment(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> tuple[str, str] | None:
        """Removes and returns the earliest timer that is due, or None."""
        while self._heap and self._heap[0][0] <= now:
            moment, _, kind, key = heappop(self._heap)
            if self._armed.get((kind, key)) == moment:
                del self._armed[kind, key]
                return kind, key
        return None
