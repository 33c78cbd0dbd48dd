"""Timers of the scheduler. A timer is identified by its kind (what to do) and its key (for which host, request or
owner; may be empty). Setting it to an earlier time replaces its time; setting it to a later one has no effect."""

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
            self._count += 1  # Timers that are due at the same time fire in the order in which they were set.
            heappush(self._heap, (moment, self._count, kind, key))

    @property
    def next_moment(self) -> float | None:
        """Earliest time at which `pop` may return a timer; None if no timer is set."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> tuple[str, str] | None:
        """Remove and return (kind, key) of the earliest timer that is due; None if none is."""
        while self._heap and self._heap[0][0] <= now:
            moment, _, kind, key = heappop(self._heap)
            if self._armed.get((kind, key)) == moment:
                del self._armed[kind, key]
                return kind, key
        return None
