"""Finds the fullest host on which a request still fits, without trying every host.

Hosts are sorted into levels by the free fraction of their scarcest resource. A request needs a certain fraction of a
host, and nearly always fits on a host whose level is higher. So the search starts at the level of that fraction and
goes up, and usually ends at once. A request that needs little of a scarce resource may also fit on hosts at lower
levels, which are tried last.
"""

from __future__ import annotations

from etude.sandbox.fleet.events import CreateRequested
from etude.sandbox.fleet.ledger import HostLedger

LEVELS = 64
"""Number of levels into which hosts are sorted by the free fraction of their scarcest resource."""
HOSTS_PER_IMAGE = 4
"""Number of hosts remembered per image: those that most recently made boxes of it. New requests try them first."""
MOST_IMAGES = 10_000
"""Maximum number of images for which hosts are remembered."""


class HostIndex:
    """Index of the hosts that can be given boxes now, sorted into levels by their free fraction."""

    def __init__(self) -> None:
        self._levels: list[dict[str, HostLedger]] = [{} for _ in range(LEVELS + 1)]
        self._level_of: dict[str, int] = {}
        self._image_hosts: dict[str, list[str]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._level_of

    def put(self, host: HostLedger) -> None:
        """Put a host into the index, or move it to the level of its present free fraction."""
        level = int(host.free() * LEVELS)
        if self._level_of.get(host.name) == level:
            return
        self.remove(host.name)
        self._levels[level][host.name] = host
        self._level_of[host.name] = level

    def remove(self, name: str) -> None:
        level = self._level_of.pop(name, None)
        if level is not None:
            del self._levels[level][name]

    def find(self, wanted: CreateRequested, tried: frozenset[str], share: float) -> HostLedger | None:
        """Return a host that fits and is not in `tried`, or None. First come hosts that recently made boxes of the
        image, then those whose free fraction is `share` or more (fullest first), then fuller ones. `share`: fraction of
        a host that the request needs."""
        for name in self._image_hosts.get(wanted.image, ()) if wanted.image else ():
            level = self._level_of.get(name)
            if level is not None and name not in tried:
                host = self._levels[level][name]
                if host.fits(wanted.demand, wanted.count):
                    return host
        start = min(LEVELS, int(share * LEVELS))
        for hosts in (*self._levels[start:], *reversed(self._levels[:start])):
            for name, host in hosts.items():
                if name not in tried and host.fits(wanted.demand, wanted.count):
                    return host
        return None

    def roomiest(self, wanted: CreateRequested, tried: frozenset[str]) -> HostLedger | None:
        """Return the host with the most room, among those that are not in `tried` and could hold the request if they
        were empty. That host is likely to be the first to have room for the request."""
        for hosts in reversed(self._levels):
            for name, host in hosts.items():
                if name not in tried and host.could_ever_fit(wanted.demand, wanted.count):
                    return host
        return None

    def remember(self, image: str, name: str) -> None:
        """Record that a host has made boxes of this image, and so has its layers."""
        if not image:
            return
        near = self._image_hosts.pop(image, [])
        if name in near:
            near.remove(name)
        self._image_hosts[image] = [name, *near][:HOSTS_PER_IMAGE]
        if len(self._image_hosts) > MOST_IMAGES:
            del self._image_hosts[next(iter(self._image_hosts))]

    def forget(self, name: str) -> None:
        """Remove a host that is gone for good, also from the lists of hosts that recently made boxes of an image."""
        self.remove(name)
        for image, near in list(self._image_hosts.items()):
            if name in near:
                near.remove(name)
                if not near:
                    del self._image_hosts[image]
