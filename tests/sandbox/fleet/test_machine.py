"""The scheduler under any order of events: what its docstring says is always true, checked against a plain model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from etude.sandbox.fleet.events import (
    BoxEnded,
    CreateDone,
    CreateFailed,
    CreateRequested,
    Destroy,
    DropHost,
    Event,
    Granted,
    HostDrained,
    HostDraining,
    HostJoined,
    HostLost,
    HostReported,
    OwnerLeft,
    OwnerRenewed,
    Place,
    Rejected,
    RequestDropped,
    Tick,
)
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.resources import Capacity, Resources
from etude.sandbox.fleet.scheduler import Scheduler

POLICY = Policy(
    ceiling=Resources(1.5, 0.8, 0.8),
    settle_seconds=2.0,
    host_rate=4.0,
    host_burst=3,
    fleet_rate=8.0,
    fleet_burst=6,
    patience=20.0,
    queue=12,
    attempts=2,
    lease_seconds=30.0,
    silent_seconds=4.0,
    lost_seconds=10.0,
)
SIZES = (Capacity(Resources(4, 4_000, 4_000), boxes=6), Capacity(Resources(16, 16_000, 8_000), boxes=30))
DEMANDS = (Resources(0.1, 300, 100), Resources(1, 1_000, 500), Resources(0.2, 3_000, 200), Resources(6, 9_000, 5_000))
MOST = 4
"""Boxes of one fork."""
NOTHING = Resources()
HOSTS = ("a", "b", "c", "d")
OWNERS = ("x", "y", "z")


@dataclass
class Host:
    """A host as it really is, beside what the scheduler believes."""

    capacity: Capacity
    used: Resources = NOTHING
    draining: bool = False
    heard: float = 0.0
    making: dict[str, tuple[str, ...]] = field(default_factory=dict)
    boxes: dict[str, Resources] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    sampled: float = -1.0


class Fleet(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(POLICY)
        self.hosts: dict[str, Host] = {}
        self.asked: dict[str, CreateRequested] = {}
        self.asked_at: dict[str, float] = {}
        self.answers: dict[str, Granted | Rejected] = {}
        self.granted: dict[str, tuple[str, str]] = {}  # box -> host, owner
        self.placements: list[tuple[float, str, int]] = []
        self.attempts: dict[str, list[str]] = {}
        self.count = 0

    # -- what decisions do to the world, and what must hold as they are made

    def tell(self, event: Event) -> None:
        for decision in self.scheduler.handle(event, self.now):
            match decision:
                case Place():
                    self.placed(decision)
                case Granted(request=request) | Rejected(request=request):
                    assert request in self.asked
                    assert request not in self.answers, "answered twice"
                    self.answers[request] = decision
                    if isinstance(decision, Granted):
                        for box in decision.boxes:
                            assert box not in self.granted, "a box on two hosts"
                            assert decision.host in self.hosts
                            self.granted[box] = decision.host, self.asked[request].owner
                case Destroy():
                    assert decision.host in self.hosts
                    self.granted.pop(decision.box, None)
                    self.hosts[decision.host].boxes.pop(decision.box, None)
                    self.hosts[decision.host].ready.pop(decision.box, None)
                case DropHost():
                    there = {box for box, (host, _) in self.granted.items() if host == decision.host}
                    assert set(decision.boxes) == there, "a lost host loses exactly its boxes"
                    for box in there:
                        del self.granted[box]
                    del self.hosts[decision.host]
                case HostDrained():
                    host = self.hosts[decision.host]
                    assert host.draining
                    assert not any(name == decision.host for name, _ in self.granted.values())

    def placed(self, place: Place) -> None:
        wanted, host = self.asked[place.request], self.hosts[place.host]
        assert place.request not in self.answers
        assert not host.draining, "a draining host gets nothing"
        assert self.now - host.heard < POLICY.silent_seconds, "a silent host gets nothing"
        assert wanted.pinned in ("", place.host)
        tried = self.attempts.setdefault(place.request, [])
        assert place.host not in tried, "another attempt is made elsewhere"
        tried.append(place.host)
        assert len(tried) <= POLICY.attempts
        assert self.now <= self.asked_at[place.request] + POLICY.patience
        self.placements.append((self.now, place.host, wanted.count))
        host.making[place.request] = place.boxes
        for box in place.boxes:
            host.boxes[box] = wanted.demand
        unseen = [
            demand
            for box, demand in host.boxes.items()
            if host.ready.get(box, 1e9) + POLICY.settle_seconds > host.sampled
        ]
        total, ceiling = host.capacity.total, POLICY.ceiling
        assert host.used.cpus + sum(d.cpus for d in unseen) <= total.cpus * ceiling.cpus + 1e-6
        assert host.used.memory_mb + sum(d.memory_mb for d in unseen) <= total.memory_mb * ceiling.memory_mb + 1e-6
        assert host.used.disk_mb + sum(d.disk_mb for d in unseen) <= total.disk_mb * ceiling.disk_mb + 1e-6
        assert len(host.boxes) <= host.capacity.boxes

    # -- events

    @rule(name=st.sampled_from(HOSTS), size=st.sampled_from(SIZES))
    def join(self, name: str, size: Capacity) -> None:
        if name not in self.hosts:
            self.hosts[name] = Host(size, heard=self.now)
            self.tell(HostJoined(name, size))

    @rule(
        owner=st.sampled_from(OWNERS),
        demand=st.sampled_from(DEMANDS),
        count=st.integers(1, MOST),
        pinned=st.sampled_from(("", "", "", *HOSTS)),
        image=st.sampled_from(("", "i", "j")),
    )
    def request(self, owner: str, demand: Resources, count: int, pinned: str, image: str) -> None:
        self.count += 1
        wanted = CreateRequested(f"r{self.count}", owner, demand, count if pinned else 1, image, pinned)
        self.asked[wanted.request], self.asked_at[wanted.request] = wanted, self.now
        self.tell(wanted)

    def some_creation(self, data: st.DataObject) -> tuple[str, str, tuple[str, ...]]:
        creations = [(host, *item) for host, it in sorted(self.hosts.items()) for item in it.making.items()]
        host, request, boxes = data.draw(st.sampled_from(creations))
        del self.hosts[host].making[request]
        return host, request, boxes

    @precondition(lambda self: any(host.making for host in self.hosts.values()))
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        host, request, boxes = self.some_creation(data)
        for box in boxes:
            if box in self.hosts[host].boxes:
                self.hosts[host].ready[box] = self.now
        self.tell(CreateDone(request, host, boxes))

    @precondition(lambda self: any(host.making for host in self.hosts.values()))
    @rule(data=st.data(), elsewhere=st.booleans(), late=st.booleans())
    def fail(self, data: st.DataObject, elsewhere: bool, late: bool) -> None:
        host, request, boxes = self.some_creation(data)
        for box in boxes:
            self.hosts[host].boxes.pop(box, None)
        self.tell(CreateFailed(request, host, boxes, "it broke", elsewhere))
        if late and host in self.hosts:  # the answer was only slow
            self.tell(CreateDone(request, host, boxes))

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        box = data.draw(st.sampled_from(sorted(self.granted)))
        host, _ = self.granted.pop(box)
        del self.hosts[host].boxes[box]
        self.tell(BoxEnded(box))
        self.tell(BoxEnded(box))

    @rule(seconds=st.floats(0.01, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    @rule(seconds=st.floats(1.0, 12.0))
    def wait_as_told(self, seconds: float) -> None:
        """Wakes whenever the scheduler asked for it: after each Tick nothing is due."""
        until = self.now + seconds
        while (wake := self.scheduler.next_wake) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.tell(Tick())
            assert self.scheduler.next_wake is None or self.scheduler.next_wake > self.now
        self.now = until

    @rule(name=st.sampled_from(HOSTS), load=st.floats(0.0, 1.2), age=st.floats(0.0, 3.0))
    def report(self, name: str, load: float, age: float) -> None:
        if name in self.hosts:
            self.tell(Tick())  # silence that is over before the report
        if name in self.hosts:
            host = self.hosts[name]
            host.used = host.capacity.total.times(1)
            host.used = Resources(host.used.cpus * load, host.used.memory_mb * load, host.used.disk_mb * load)
            host.sampled, host.heard = self.now - age, self.now
            for box in [b for b, at in host.ready.items() if at + POLICY.settle_seconds <= host.sampled]:
                host.ready[box] = -1e9  # seen once is seen
            self.tell(HostReported(name, host.used, host.sampled))

    @rule(name=st.sampled_from(HOSTS), seconds=st.floats(0.0, 10.0))
    def drain(self, name: str, seconds: float) -> None:
        if name in self.hosts:
            self.hosts[name].draining = True
            self.tell(HostDraining(name, self.now + seconds))

    @rule(name=st.sampled_from(HOSTS))
    def lose(self, name: str) -> None:
        self.tell(HostLost(name, "its node died"))
        assert name not in self.hosts

    @rule(owner=st.sampled_from(OWNERS))
    def renew(self, owner: str) -> None:
        self.tell(OwnerRenewed(owner))

    @rule(owner=st.sampled_from(OWNERS))
    def leave(self, owner: str) -> None:
        self.tell(OwnerLeft(owner))
        assert not any(theirs == owner for _, theirs in self.granted.values())
        open_requests = [r for r, asked in self.asked.items() if asked.owner == owner and r not in self.answers]
        assert open_requests == []

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.asked)))
        self.tell(RequestDropped(request))
        assert request in self.answers

    # -- always

    @invariant()
    def believes_what_is(self) -> None:
        assert {box: self.scheduler.host_of(box) for box in self.granted} == {
            b: h for b, (h, _) in self.granted.items()
        }
        assert set(self.scheduler.hosts) == set(self.hosts)
        for name, host in self.hosts.items():
            assert set(self.scheduler.hosts[name].boxes) == set(host.boxes)

    @invariant()
    def tokens_are_conserved(self) -> None:
        over = MOST - 1
        for start in {at for at, _, _ in self.placements[-20:]}:
            span = [(host, count) for at, host, count in self.placements if at >= start]
            allowed = POLICY.fleet_burst + POLICY.fleet_rate * (self.now - start) + over
            assert sum(count for _, count in span) <= allowed + 1e-3

    @invariant()
    def work_is_conserved(self) -> None:
        """Nobody waits for a host that is free to take them."""
        scheduler = self.scheduler
        if scheduler.assigner.admission.ready_at(scheduler._now) > scheduler._now:
            return
        for line in scheduler.waiting.turns(everyone=True):
            pending = scheduler.waiting.head(line)
            wanted = pending.wanted
            candidates = (
                [wanted.pinned] if wanted.pinned else [pending.claim] if pending.claim else list(scheduler.hosts)
            )
            for name in candidates:
                host = scheduler.hosts[name]
                kept = host.claimant is not None and host.claimant is not pending
                free = host.takes_boxes and not kept and name not in pending.tried
                assert not (free and host.fits(wanted.demand, wanted.count)), (pending, name)

    def teardown(self) -> None:
        """Everybody is answered in the end, with nothing but time passing and creations ending."""
        if not hasattr(self, "now"):
            return
        for _ in range(200):
            if len(self.answers) == len(self.asked):
                return
            for name, host in list(self.hosts.items()):
                for request, boxes in list(host.making.items()):
                    if name in self.hosts:
                        del host.making[request]
                        for box in boxes:
                            if box in host.boxes:
                                host.ready[box] = self.now
                        self.tell(CreateDone(request, name, boxes))
            self.now += 1.0
            self.tell(Tick())
        raise AssertionError(f"never answered: {set(self.asked) - set(self.answers)}")


Fleet.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestFleet = Fleet.TestCase


@pytest.mark.soak
def test_it_holds_for_long() -> None:
    run_state_machine_as_test(Fleet, settings=settings(max_examples=300, stateful_step_count=80, deadline=None))
