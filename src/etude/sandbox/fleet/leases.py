"""Which owner has which boxes, and until when. An owner is a client; one renewal covers all its boxes."""

from __future__ import annotations


class Leases:
    """Each owner's deadline. Nothing expires by itself: the scheduler's timers check at the times `renew` returns."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}
        self._boxes: dict[str, dict[str, None]] = {}

    def __contains__(self, owner: object) -> bool:
        return owner in self._until

    def __len__(self) -> int:
        return len(self._until)

    def renew(self, owner: str, now: float) -> float:
        """Extends the lease, opening it if necessary; returns its deadline."""
        self._until[owner] = until = now + self._seconds
        self._boxes.setdefault(owner, {})
        return until

    def deadline(self, owner: str) -> float | None:
        return self._until.get(owner)

    def add(self, owner: str, box: str) -> None:
        self._boxes[owner][box] = None

    def remove(self, owner: str, box: str) -> None:
        if owner in self._boxes:
            self._boxes[owner].pop(box, None)

    def end(self, owner: str) -> list[str]:
        """Closes the lease; returns the boxes it held, oldest first."""
        self._until.pop(owner, None)
        return list(self._boxes.pop(owner, ()))
