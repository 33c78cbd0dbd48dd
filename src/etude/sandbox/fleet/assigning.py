"""Assigns hosts to waiting requests whenever a host or a request changes.

Invariant: all hosts are searched for a request when it becomes the first of its queue. After that, only hosts that gain
room are tried. A request that has waited for long may claim a host, which then takes no other boxes.
"""

from __future__ import annotations

from etude.sandbox.fleet.events import CreateRequested
from etude.sandbox.fleet.ledger import HostLedger
from etude.sandbox.fleet.placement import HostIndex
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.resources import Capacity
from etude.sandbox.fleet.timers import Timers
from etude.sandbox.fleet.token_bucket import TokenBucket
from etude.sandbox.fleet.waiting_requests import Pending, WaitingRequests

_MOST_HOSTS_NAMED = 3
"""Maximum number of hosts that an error about missing room names, each with what it lacks."""


class Assigner:
    """Assigns hosts to waiting requests. It holds the records of all hosts, and the queues of all waiting requests."""

    def __init__(self, policy: Policy, timers: Timers, now: float) -> None:
        self.policy = policy
        self.hosts: dict[str, HostLedger] = {}
        self.waiting = WaitingRequests()
        self.admission = TokenBucket(policy.fleet_rate, policy.fleet_burst, now)
        self._timers = timers
        self._index = HostIndex()
        self._grown: dict[str, None] = {}
        """Hosts that have gained room since the last round of assignments (an ordered set)."""
        self._sizes: dict[Capacity, int] = {}
        """Number of hosts of each capacity."""

    # -- hosts

    def add(self, host: HostLedger) -> None:
        self.hosts[host.name] = host
        self._sizes[host.capacity] = self._sizes.get(host.capacity, 0) + 1
        self.changed(host)

    def remove(self, name: str) -> HostLedger | None:
        """Remove a host. If a waiting request has claimed the host, the claim ends. Return the host, or None if no host
        has this name."""
        host = self.hosts.pop(name, None)
        if host is None:
            return None
        self._sizes[host.capacity] -= 1
        if not self._sizes[host.capacity]:
            del self._sizes[host.capacity]
        self._grown.pop(name, None)
        self._index.forget(name)
        self.void_claim(host)
        return host

    def changed(self, host: HostLedger, *, gained: bool = True) -> None:
        """Update the index of hosts after a change of this host. With `gained`, the host may have gained room, so that
        the next `assign` tries waiting requests on it."""
        if host.takes_boxes and host.claimant is None:
            self._index.put(host)
        else:
            self._index.remove(host.name)
        if gained and host.takes_boxes:
            self._grown[host.name] = None

    def could_ever_hold(self, wanted: CreateRequested) -> bool:
        """Return whether some host could take the request if it were empty. True while no host is known."""
        sizes = [self.hosts[wanted.pinned].capacity] if wanted.pinned else list(self._sizes)
        fit = (wanted.count <= size.boxes and self._fraction_needed(size, wanted) <= 1.0 for size in sizes)
        return not sizes or any(fit)

    def shortages(self, pending: Pending) -> str:
        """Return what hosts lack for the request, as text to append to its error; empty if nothing."""
        wanted = pending.wanted
        hosts = (host for host in self.hosts.values() if wanted.pinned in ("", host.name))
        short = [(host.name, host.shortages(wanted.demand, wanted.count)) for host in hosts]
        texts = [f"{name} is short of {' and of '.join(words)}" for name, words in short if words]
        return "".join(f"; {words}" for words in texts[:_MOST_HOSTS_NAMED])

    # -- requests to hosts

    def assign(self, now: float) -> list[Pending]:
        """Assign hosts to waiting requests, one of each queue in turn. Return the requests that got a host."""
        placed: list[Pending] = []
        while len(self.waiting) and (self._grown or self.waiting.has_fresh):
            grown, self._grown = self._grown, {}
            for queue in self.waiting.turns(everyone=bool(grown)):
                if not self._admitted(now):
                    self._grown = {**grown, **self._grown}
                    return placed
                pending = self.waiting.head(queue)
                host = self._find_host(pending, grown)
                if host is not None:
                    self._place(self.waiting.take(queue), host, now)
                    placed.append(pending)
                else:
                    self.waiting.mark_searched(pending)
                    self.claim(pending, now)
        if not len(self.waiting):
            self._grown.clear()
        return placed

    def _admitted(self, now: float) -> bool:
        """Return whether the fleet's token bucket allows a creation now. If not, set a timer for when it will."""
        ready = self.admission.ready_at(now)
        if ready > now:
            self._timers.set(ready, "admission")
        return ready <= now

    def _find_host(self, pending: Pending, grown: dict[str, None]) -> HostLedger | None:
        """Return a host for the request, or None. A host that the request has claimed, or must use, is the only
        candidate. If all hosts were searched for the request before, only `grown` is tried: hosts that gained room."""
        wanted = pending.wanted
        if pending.claim or wanted.pinned:
            host = self.hosts.get(pending.claim or wanted.pinned)
            return host if host is not None and self._may_take(host, pending) else None
        if pending.searched:
            hosts = (self.hosts[name] for name in grown if name in self._index and name not in pending.tried)
            return next((host for host in hosts if host.fits(wanted.demand, wanted.count)), None)
        share = min((self._fraction_needed(size, wanted) for size in self._sizes), default=0.0)
        return self._index.find(wanted, pending.tried, share)

    def _may_take(self, host: HostLedger, pending: Pending) -> bool:
        """Return whether the host is not kept free for another request, takes boxes now, and has room."""
        free = host.claimant is None or host.claimant is pending
        return free and host.takes_boxes and host.fits(pending.wanted.demand, pending.wanted.count)

    def _fraction_needed(self, size: Capacity, wanted: CreateRequested) -> float:
        """Return the fraction of a host of this size that the request needs: the largest over cores, memory and disk,
        each relative to what may be filled (`Policy.ceiling`)."""
        demand, total, ceiling = wanted.demand, size.total, self.policy.ceiling
        return wanted.count * max(
            demand.cpus / (total.cpus * ceiling.cpus),
            demand.memory_mb / (total.memory_mb * ceiling.memory_mb),
            demand.disk_mb / (total.disk_mb * ceiling.disk_mb),
        )

    def _place(self, pending: Pending, host: HostLedger, now: float) -> None:
        """Reserve the host's resources for the request, and take tokens from the fleet's bucket and the host's."""
        wanted = pending.wanted
        self.unclaim(pending)
        pending.attempt += 1
        pending.host = host.name
        self.admission.take(wanted.count, now)
        host.bucket.take(wanted.count, now)
        host.reserve(wanted.boxes, wanted.demand)
        self._index.remember(wanted.image, host.name)
        ready = host.bucket.ready_at(now)
        if ready > now:
            host.cooling = True
            self._timers.set(ready, "cooling", host.name)
        self.changed(host, gained=False)

    # -- claims

    def claim(self, pending: Pending, now: float) -> None:
        """Keep a host free for the request, if all hosts were searched for it and it has waited for long."""
        if pending.host or pending.claim or not pending.searched:
            return
        if now < pending.since + self.policy.patience * self.policy.claim_after:
            return
        wanted = pending.wanted
        host = self.hosts.get(wanted.pinned) if wanted.pinned else self._index.roomiest(wanted, pending.tried)
        if host is not None and host.claimant is None:
            host.claimant, pending.claim = pending, host.name
            self.changed(host, gained=False)

    def void_claim(self, host: HostLedger) -> None:
        """End the claim on a host that takes no boxes any more, if a waiting request has claimed it. All hosts are then
        searched again for this request."""
        if claimant := host.claimant:
            host.claimant, claimant.claim = None, ""
            self.waiting.search_again(claimant)

    def unclaim(self, pending: Pending) -> None:
        """If the request has claimed a host, end this claim, so that the host can take other boxes."""
        host = self.hosts.get(pending.claim)
        pending.claim = ""
        if host is not None:
            host.claimant = None
            self.changed(host)
