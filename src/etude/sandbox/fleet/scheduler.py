"""The fleet's scheduler: a pure state machine. Events and the time go in, decisions come out. It has no clock, makes no
calls, and uses no randomness.

Invariants, for all events in any order (tests/sandbox/fleet/test_machine.py):

- every request is answered exactly once, by Granted or Rejected;
- a box is on one host at most, and no host gets a box that would exceed its ceiling, by the load known at that time;
- a host that is silent, draining or gone gets no boxes; a lost host loses its own boxes and no others.

A request waits until a host has room and both token buckets, the fleet's and the host's, have a token (assigning.py).
After a fixed fraction of its maximum waiting time, the request claims a host, which then takes no other boxes until the
request fits. So small requests do not starve large ones.
"""

from __future__ import annotations

from etude.sandbox.fleet import events
from etude.sandbox.fleet.assigning import Assigner
from etude.sandbox.fleet.leases import Leases
from etude.sandbox.fleet.ledger import HostLedger, HostState
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.timers import Timers
from etude.sandbox.fleet.waiting_requests import Pending


class Scheduler:
    def __init__(self, policy: Policy, now: float = 0.0) -> None:
        self.policy = policy
        self._timers = Timers()
        self.assigner = Assigner(policy, self._timers, now)
        self.hosts, self.waiting = self.assigner.hosts, self.assigner.waiting
        self.leases = Leases(policy.lease_seconds)
        self._pending: dict[str, Pending] = {}
        """Requests that wait or whose boxes are being made, by id."""
        self._where: dict[str, tuple[str, str]] = {}
        """Maps the id of every granted box to the names of its host and its owner."""
        self._drains: dict[str, float] = {}
        """Maps the name of every draining host to the time at which its remaining boxes are destroyed."""
        self._now = now
        self._out: list[events.Decision] = []
        self._on_event = {
            events.CreateRequested: self._requested,
            events.RequestDropped: self._dropped,
            events.CreateDone: self._done,
            events.CreateFailed: self._failed,
            events.BoxEnded: self._ended,
            events.OwnerRenewed: self._renewed,
            events.OwnerLeft: self._left,
            events.HostJoined: self._joined,
            events.HostReported: self._reported,
            events.HostDraining: self._draining,
            events.HostLost: self._lost,
            events.Tick: lambda _: None,
        }
        self._on_timer = {
            "patience": self._impatient,
            "claim": self._claim_due,
            "lease": self._lease_due,
            "silence": self._silence_due,
            "drain": self._drain_due,
            "cooling": self._cooled,
            "admission": lambda _: None,
        }

    # -- interface

    def handle(self, event: events.Event, now: float) -> list[events.Decision]:
        """Process one event and return the decisions. Time never runs back: an earlier `now` counts as the latest."""
        self._now = max(now, self._now)
        while (due := self._timers.pop(self._now)) is not None:
            kind, key = due
            self._on_timer[kind](key)
        self._on_event[type(event)](event)  # type: ignore[operator]
        self._serve()
        out, self._out = self._out, []
        return out

    @property
    def next_wake(self) -> float | None:
        """Time of the earliest timer, at which the scheduler needs a Tick if no event comes before; None: no timer."""
        return self._timers.next_moment

    def host_of(self, box: str) -> str:
        """Return the box's host; empty if there is no such box."""
        return self._where[box][0] if box in self._where else ""

    # -- requests

    def _requested(self, event: events.CreateRequested) -> None:
        if event.request in self._pending:
            raise ValueError(f"request {event.request!r} was made before")
        self._renewed(events.OwnerRenewed(event.owner))
        if event.pinned and (gone := self._unavailable(event.pinned)):
            self._reject(event.request, events.RejectKind.GONE, gone)
        elif not self.assigner.could_ever_hold(event):
            self._reject(
                event.request, events.RejectKind.IMPOSSIBLE, f"no host has room for {event.count} x {event.demand}"
            )
        elif len(self.waiting) >= self.policy.queue:
            self._reject(
                event.request, events.RejectKind.FULL, f"{len(self.waiting)} requests wait already", self._retry_after()
            )
        else:
            self._pending[event.request] = pending = Pending(event, self._now)
            self.waiting.add(pending)
            self._serve()
            if not pending.host:
                self._wait(pending)

    def _wait(self, pending: Pending) -> None:
        """Set two timers for a waiting request: at the first, it claims a host, which is then kept free for it; at the
        second, it is rejected."""
        patience, request = self.policy.patience, pending.wanted.request
        self._timers.set(pending.since + patience, "patience", request)
        self._timers.set(pending.since + patience * self.policy.claim_after, "claim", request)

    def _claim_due(self, request: str) -> None:
        if pending := self._pending.get(request):
            self.assigner.claim(pending, self._now)

    def _serve(self) -> None:
        for pending in self.assigner.assign(self._now):
            self._out.append(events.Place(pending.wanted.request, pending.host, pending.wanted.boxes))

    def _dropped(self, event: events.RequestDropped) -> None:
        self._give_up(event.request, events.RejectKind.LEFT, "its client no longer waits")

    def _impatient(self, request: str) -> None:
        pending = self._pending.get(request)
        if pending is not None and not pending.host:
            reason = f"no room within {self._now - pending.since:.1f} s{self.assigner.shortages(pending)}"
            self._give_up(request, events.RejectKind.FULL, reason, self._retry_after())

    def _give_up(self, request: str, kind: events.RejectKind, reason: str, retry_after: float = 0.0) -> None:
        """Reject a request, unless it has been answered. Boxes that a host is still making are destroyed when made."""
        pending = self._pending.get(request)
        if pending is None or pending.answered:
            return
        pending.answered = True
        self._reject(request, kind, reason, retry_after)
        if not pending.host:
            self.waiting.remove(pending)
            self._forget(pending)

    def _reject(self, request: str, kind: events.RejectKind, reason: str, retry_after: float = 0.0) -> None:
        self._out.append(events.Rejected(request, kind, reason, retry_after))

    def _retry_after(self) -> float:
        return max(1.0, len(self.waiting) / self.policy.fleet_rate)

    def _forget(self, pending: Pending) -> None:
        self._pending.pop(pending.wanted.request, None)
        self.assigner.unclaim(pending)

    # -- creations

    def _done(self, event: events.CreateDone) -> None:
        pending = self._pending.get(event.request)
        if pending is None or pending.host != event.host:
            # Too late: the request is being tried elsewhere, or was given up.
            self._destroy(event.boxes, event.host)
            return
        self._forget(pending)
        host = self.hosts[event.host]
        if pending.answered:
            self._destroy(event.boxes, event.host)
            self._release(event.boxes, host)
            return
        host.ready(event.boxes, self._now)
        for box in event.boxes:
            self._where[box] = event.host, pending.wanted.owner
            self.leases.add(pending.wanted.owner, box)
        self._out.append(events.Granted(event.request, event.host, event.boxes))

    def _failed(self, event: events.CreateFailed) -> None:
        """Handle a failed creation: free what was reserved, and try another host if that may help."""
        pending = self._pending.get(event.request)
        if pending is None or pending.host != event.host:
            return
        if event.elsewhere:  # The boxes may have been made, and only the answer lost.
            self._destroy(event.boxes, event.host)
        self._release(event.boxes, self.hosts[event.host])
        self._again(pending, event.reason, elsewhere=event.elsewhere)

    def _again(self, pending: Pending, reason: str, *, elsewhere: bool) -> None:
        """Queue a request again after a host failed to make its boxes, or reject it if no other can be tried
        (`elsewhere`: another might succeed). Trying again is safe, since no client has received boxes of the first
        try."""
        wanted = pending.wanted
        pending.tried |= {pending.host}
        pending.host, pending.searched = "", False
        if pending.answered:
            self._forget(pending)
        elif not elsewhere or wanted.pinned or pending.attempt >= self.policy.attempts:
            self._give_up_unplaced(pending, events.RejectKind.FAILED, reason)
        elif self._now >= pending.since + self.policy.patience:
            self._give_up_unplaced(pending, events.RejectKind.FULL, f"{reason}; no time is left for another host")
        elif self.hosts and pending.tried.issuperset(self.hosts):
            self._give_up_unplaced(pending, events.RejectKind.FAILED, f"every host failed, the last so: {reason}")
        else:
            self.waiting.add(pending, first=True)
            self._wait(pending)

    def _give_up_unplaced(self, pending: Pending, kind: events.RejectKind, reason: str) -> None:
        """Reject a request that has just lost its host and is in no queue."""
        self._forget(pending)
        self._reject(
            pending.wanted.request, kind, reason, self._retry_after() if kind is events.RejectKind.FULL else 0.0
        )

    # -- boxes and owners

    def _ended(self, event: events.BoxEnded) -> None:
        host, owner = self._where.pop(event.box, ("", ""))
        if host:
            self.leases.remove(owner, event.box)
            self._release((event.box,), self.hosts[host])

    def _renewed(self, event: events.OwnerRenewed) -> None:
        opened = event.owner not in self.leases
        until = self.leases.renew(event.owner, self._now)
        if opened:
            self._timers.set(until, "lease", event.owner)

    def _lease_due(self, owner: str) -> None:
        """End an owner's lease, or set the timer again if the lease has been renewed meanwhile."""
        until = self.leases.deadline(owner)
        if until is not None and until > self._now:
            self._timers.set(until, "lease", owner)
        elif until is not None:
            self._close(owner, "its owner's lease ran out")

    def _left(self, event: events.OwnerLeft) -> None:
        self._close(event.owner, "its owner has left")

    def _close(self, owner: str, reason: str) -> None:
        for request in [name for name, pending in self._pending.items() if pending.wanted.owner == owner]:
            self._give_up(request, events.RejectKind.LEFT, reason)
        for box in self.leases.end(owner):
            host, _ = self._where.pop(box)
            self._destroy((box,), host)
            self._release((box,), self.hosts[host])

    def _destroy(self, boxes: tuple[str, ...], host: str) -> None:
        if host in self.hosts:  # Otherwise the host was killed, with everything on it.
            self._out += [events.Destroy(box, host) for box in boxes]

    def _release(self, boxes: tuple[str, ...], host: HostLedger) -> None:
        """Free what the boxes used on their host. A draining host that is now empty is reported as drained."""
        for box in boxes:
            host.release(box)
        self.assigner.changed(host)
        if host.state is HostState.DRAINING and not host.boxes and host.name in self._drains:
            del self._drains[host.name]
            self._out.append(events.HostDrained(host.name))

    # -- hosts

    def _joined(self, event: events.HostJoined) -> None:
        if event.host in self.hosts:
            raise ValueError(f"host {event.host!r} is there already")
        host = HostLedger(event.host, event.capacity, self.policy, self._now)
        for held in event.held:
            self._renewed(events.OwnerRenewed(held.owner))
            self._where[held.box] = event.host, held.owner
            self.leases.add(held.owner, held.box)
            host.adopt(held.box, held.demand, self._now)
        self._timers.set(self._now + self.policy.silent_seconds, "silence", event.host)
        self.assigner.add(host)

    def _reported(self, event: events.HostReported) -> None:
        host = self.hosts.get(event.host)
        if host is not None:
            host.report(event.used, event.sampled, self._now)
            # For a silent host, the timer was set to the time of giving it up, which is later than this one.
            self._timers.set(self._now + self.policy.silent_seconds, "silence", event.host)
            self.assigner.changed(host)

    def _silence_due(self, name: str) -> None:
        """Mark a host as silent if its report is late, or give it up if it has been silent for too long."""
        host = self.hosts.get(name)
        if host is None:
            return
        late, lost = host.last_report + self.policy.silent_seconds, host.last_report + self.policy.lost_seconds
        if self._now >= lost:
            self._lost(events.HostLost(name, f"it has not reported for {self._now - host.last_report:.1f} s"))
            return
        if self._now >= late and host.state is HostState.UP:
            host.state = HostState.SILENT
            self.assigner.changed(host, gained=False)
        self._timers.set(lost if self._now >= late else late, "silence", name)

    def _cooled(self, name: str) -> None:
        """Let a host take boxes again, since the token bucket that limits its rate of box creations has a token."""
        host = self.hosts.get(name)
        if host is not None:
            host.cooling = False
            self.assigner.changed(host)

    def _draining(self, event: events.HostDraining) -> None:
        host = self.hosts.get(event.host)
        if host is None:
            return
        host.state = HostState.DRAINING
        self._drains[event.host] = event.by
        self._timers.set(event.by, "drain", event.host)
        self._reject_pinned(event.host, f"host {event.host} is draining")
        self.assigner.void_claim(host)
        self._release((), host)

    def _drain_due(self, name: str) -> None:
        if name not in self._drains:
            return
        if self._drains[name] <= self._now:
            for box in [box for box in self.hosts[name].boxes if box in self._where]:
                self._destroy((box,), name)
                self._ended(events.BoxEnded(box))
        if name in self._drains:  # The drain was put off, or a box is still being made.
            self._timers.set(max(self._drains[name], self._now + self.policy.beat_seconds), "drain", name)

    def _lost(self, event: events.HostLost) -> None:
        """Remove a lost host with its boxes. Requests whose boxes it was making are tried on other hosts."""
        host = self.assigner.remove(event.host)
        if host is None:
            return
        self._drains.pop(event.host, None)
        lost = tuple(box for box in host.boxes if box in self._where)
        for box in lost:
            _, owner = self._where.pop(box)
            self.leases.remove(owner, box)
        self._out.append(events.DropHost(event.host, lost))
        for pending in [pending for pending in self._pending.values() if pending.host == event.host]:
            self._again(pending, f"host {event.host} was lost: {event.reason}", elsewhere=True)
        self._reject_pinned(event.host, f"host {event.host} was lost: {event.reason}")

    def _reject_pinned(self, name: str, reason: str) -> None:
        for request in [n for n, p in self._pending.items() if p.wanted.pinned == name and not p.host]:
            self._give_up(request, events.RejectKind.GONE, reason)

    def _unavailable(self, name: str) -> str:
        """Return why a request pinned to this host cannot be taken; empty if it can."""
        host = self.hosts.get(name)
        if host is None:
            return f"host {name} is lost"
        return f"host {name} is draining" if host.state is HostState.DRAINING else ""
