"""Finds the fullest host on which a request still fits, without looking at every host.

Hosts are sorted into levels by the free fraction of their scarcest resource. A host at a level above the fraction that
a request needs fits for certain, so the search starts there, goes up and usually ends at once. Hosts below may still
fit if the request needs little of what is scarce; they are searched only if no host above will do.
"""

from __future__ import annotations

from etude.sandbox.fleet.events import CreateRequested
from etude.sandbox.fleet.ledger import HostLedger

LEVELS = 64
NEAR = 4
"""Number of hosts remembered per image, those that made boxes of it last; they are tried first."""
IMAGES = 10_000


class HostIndex:
    """The hosts that can be given boxes now."""

    def __init__(self) -> None:
        self._levels: list[dict[str, HostLedger]] = [{} for _ in range(LEVELS + 1)]
        self._level_of: dict[str, int] = {}
        self._occupied = 0  # Bit n is set if level n holds a host.
        self._near: dict[str, list[str]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._level_of

    def put(self, host: HostLedger) -> None:
        """Puts a host into the level of its current free fraction."""
        level = int(host.free() * LEVELS)
        if self._level_of.get(host.name) == level:
            return
        self.remove(host.name)
        self._levels[level][host.name] = host
        self._level_of[host.name] = level
        self._occupied |= 1 << level

    def remove(self, name: str) -> None:
        level = self._level_of.pop(name, None)
        if level is not None:
            del self._levels[level][name]
            if not self._levels[level]:
                self._occupied &= ~(1 << level)

    def find(self, wanted: CreateRequested, tried: frozenset[str], share: float) -> HostLedger | None:
        """Finds a host. `share` is the smallest fraction of any host's limit that the request needs."""
        for name in self._near.get(wanted.image, ()) if wanted.image else ():
            level = self._level_of.get(name)
            if level is not None and name not in tried:
                host = self._levels[level][name]
                if host.fits(wanted.demand, wanted.count):
                    return host
        start = min(LEVELS, int(share * LEVELS))
        above = self._occupied >> start << start
        while above:
            lowest = above & -above
            if (found := self._in_level(lowest.bit_length() - 1, wanted, tried)) is not None:
                return found
            above ^= lowest
        below = self._occupied & ((1 << start) - 1)
        while below:
            highest = below.bit_length() - 1
            if (found := self._in_level(highest, wanted, tried)) is not None:
                return found
            below ^= 1 << highest
        return None

    def roomiest(self, wanted: CreateRequested, tried: frozenset[str]) -> HostLedger | None:
        """When the request fits nowhere: the host with the most room, which will be the first to have enough."""
        for level in range(LEVELS, -1, -1):
            for name, host in self._levels[level].items():
                if name not in tried and host.could_ever_fit(wanted.demand, wanted.count):
                    return host
        return None

    def remember(self, image: str, name: str) -> None:
        """Notes that a host has made boxes of this image, and so has its layers."""
        if not image:
            return
        near = self._near.pop(image, [])
        if name in near:
            near.remove(name)
        self._near[image] = [name, *near][:NEAR]
        if len(self._near) > IMAGES:
            del self._near[next(iter(self._near))]

    def forget(self, name: str) -> None:
        self.remove(name)
        for image, near in list(self._near.items()):
            if name in near:
                near.remove(name)
                if not near:
                    del self._near[image]

    def _in_level(self, level: int, wanted: CreateRequested, tried: frozenset[str]) -> HostLedger | None:
        for name, host in self._levels[level].items():
            if name not in tried and host.fits(wanted.demand, wanted.count):
                return host
        return None
