"""Records which boxes each owner has, and until when. An owner is a client of the fleet; one renewal extends the lease
on all its boxes."""

from __future__ import annotations


class Leases:
    """The lease deadline and the boxes of each owner (client). Nothing expires by itself: the scheduler sets timers."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}
        self._boxes: dict[str, dict[str, None]] = {}

    def __contains__(self, owner: object) -> bool:
        return owner in self._until

    def renew(self, owner: str, now: float) -> float:
        """Extend the owner's lease, opening it if necessary. Return its new deadline."""
        self._until[owner] = until = now + self._seconds
        self._boxes.setdefault(owner, {})
        return until

    def deadline(self, owner: str) -> float | None:
        """Return the time at which the owner's lease ends, or None if the owner has no lease."""
        return self._until.get(owner)

    def add(self, owner: str, box: str) -> None:
        self._boxes[owner][box] = None

    def remove(self, owner: str, box: str) -> None:
        if owner in self._boxes:
            self._boxes[owner].pop(box, None)

    def end(self, owner: str) -> list[str]:
        """Close the owner's lease. Return the boxes it covered, oldest first."""
        self._until.pop(owner, None)
        return list(self._boxes.pop(owner, ()))
