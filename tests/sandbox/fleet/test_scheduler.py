"""Single decisions of the scheduler, as examples; what is always true is in test_machine.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from etude.sandbox.fleet.events import (
    BoxEnded,
    CreateDone,
    CreateFailed,
    CreateRequested,
    Decision,
    DropHost,
    Event,
    Granted,
    HostDraining,
    HostJoined,
    HostLost,
    HostReported,
    Place,
    Rejected,
    RejectKind,
    Tick,
)
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.resources import Capacity, Resources
from etude.sandbox.fleet.scheduler import Scheduler

POLICY = Policy(ceiling=Resources(1.0, 1.0, 1.0), settle_seconds=2.0, patience=20.0, claim_after=0.25)
SIZE = Capacity(Resources(8, 8_000, 8_000))
SMALL, HALF, WHOLE = (Resources(0.01, memory, 1) for memory in (500, 4_000, 8_000))


class World:
    """Every placement succeeds at once."""

    def __init__(self, policy: Policy = POLICY, hosts: str = "ab") -> None:
        self.scheduler, self.now = Scheduler(policy), 0.0
        self.on: dict[str, str] = {}
        self.rejected: dict[str, Rejected] = {}
        for name in hosts:
            self.tell(HostJoined(name, SIZE))

    def tell(self, event: Event) -> list[Decision]:
        decisions = self.scheduler.handle(event, self.now)
        for decision in decisions:
            if isinstance(decision, Place):
                self.tell(CreateDone(decision.request, decision.host, decision.boxes))
            elif isinstance(decision, Granted):
                self.on[decision.request] = decision.host
            elif isinstance(decision, Rejected):
                self.rejected[decision.request] = decision
        return decisions

    def ask(self, request: str, demand: Resources = SMALL, owner: str = "x", **more: object) -> str:
        """The host, or nothing."""
        self.tell(CreateRequested(request, owner, demand, **more))  # type: ignore[arg-type]
        return self.on.get(request, "")

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            for host in list(self.scheduler.hosts.values()):
                self.tell(HostReported(host.name, Resources(), -1.0))


def test_the_fullest_host_that_fits_is_taken() -> None:
    world = World(hosts="abc")
    first = world.ask("r1", HALF)
    assert {world.ask(f"s{n}") for n in range(8)} == {first}
    assert world.ask("r2", HALF) != first


def test_boxes_of_an_image_stay_where_it_is_while_they_fit() -> None:
    world = World(hosts="abc")
    home = world.ask("r1", HALF, image="i")
    other = world.ask("r2", Resources(0.01, 5_000, 1))
    assert other != home
    assert world.ask("r3", image="i") == home, "although the other host is fuller"
    assert world.ask("r4") == other


def test_live_load_replaces_reservations_once_they_show() -> None:
    world = World(hosts="a")
    assert world.ask("r1", WHOLE)
    assert not world.ask("r2", HALF)
    world.now = 5.0
    world.tell(HostReported("a", Resources(memory_mb=1_000), 1.0))
    assert "r2" not in world.on, "sampled before the box could show"
    world.tell(HostReported("a", Resources(memory_mb=1_000), 2.5))
    assert world.on["r2"] == "a"
    world.tell(HostReported("a", Resources(memory_mb=7_900), 4.0))
    assert not world.ask("r3"), "others' load counts as well"


def test_a_host_that_was_silent_and_came_back_is_watched_as_before() -> None:
    world = World(hosts="a")
    for silent in (1, 2):
        world.now += POLICY.silent_seconds
        assert not world.ask(f"r{silent}"), "it may be gone"
        world.tell(HostReported("a", Resources(), -1.0))
        assert world.on[f"r{silent}"] == "a"


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """Small boxes come faster than they go: without a claim the whole host would never be free."""
    world = World(hosts="ab")
    held: list[str] = []
    for n in range(32):
        world.ask(f"s{n}")
        held.append(f"s{n}.0")
    world.tell(CreateRequested("large", "y", WHOLE))
    for n in range(100, 300):
        world.now += 0.2
        box = held.pop(0)
        world.tell(BoxEnded(box))
        world.tell(CreateRequested(f"s{n}", "x", SMALL))
        if f"s{n}" in world.on:
            held.append(f"s{n}.0")
        held = [box for box in held if world.scheduler.host_of(box)]
        for host in "ab":
            world.tell(HostReported(host, Resources(), -1.0))
        if "large" in world.on or not held:
            break
    assert world.on["large"]
    assert world.now < POLICY.patience


@pytest.mark.parametrize("end", [HostLost("a", "gone"), HostDraining("a", 60.0)])
def test_a_request_whose_claimed_host_ends_looks_at_the_others_again(end: Event) -> None:
    world = World(hosts="a")
    for n in range(16):
        world.ask(f"s{n}")
    world.tell(CreateRequested("large", "y", WHOLE))
    world.now += POLICY.patience * POLICY.claim_after + 1.0
    world.tell(HostReported("a", Resources(), -1.0))
    claimant = world.scheduler.hosts["a"].claimant
    assert claimant is not None
    assert claimant.wanted.request == "large"
    world.tell(HostJoined("b", SIZE))
    assert "large" not in world.on
    world.tell(end)
    assert world.on["large"] == "b"


def test_owners_take_turns() -> None:
    policy = replace(POLICY, fleet_rate=10.0, fleet_burst=1)
    world = World(policy)
    for n in range(50):
        world.ask(f"x{n}", owner="x")
    world.ask("y0", owner="y")
    while "y0" not in world.on:
        world.now += 0.1
        world.tell(Tick())
    assert Counter(name[0] for name in world.on)["x"] <= 3


def test_a_creation_is_tried_elsewhere_and_a_fork_is_not() -> None:
    scheduler = Scheduler(POLICY)
    for name in "abc":
        scheduler.handle(HostJoined(name, SIZE), 0.0)
    hosts = []
    (decision,) = scheduler.handle(CreateRequested("r", "x", SMALL), 0.0)
    while isinstance(decision, Place):
        hosts.append(decision.host)
        failed = CreateFailed("r", decision.host, decision.boxes, "disk full", elsewhere=True)
        *_, decision = scheduler.handle(failed, 0.0)
    assert sorted(hosts) == ["a", "b", "c"]
    assert isinstance(decision, Rejected)
    assert (decision.kind, decision.reason) == (RejectKind.FAILED, "disk full")
    (place,) = scheduler.handle(CreateRequested("f", "x", SMALL, 3, pinned="b"), 0.0)
    assert isinstance(place, Place)
    assert (place.host, len(place.boxes)) == ("b", 3)
    *_, end = scheduler.handle(CreateFailed("f", "b", place.boxes, "busy", elsewhere=True), 0.0)
    assert isinstance(end, Rejected)


@pytest.mark.parametrize("pinned", ["", "a"])
def test_what_fits_nowhere_is_refused_at_once(pinned: str) -> None:
    world = World()
    assert not world.ask("r", Resources(1, 8_001, 1), pinned=pinned)
    assert world.rejected["r"].kind is RejectKind.IMPOSSIBLE


def test_patience_ends_with_when_to_come_back() -> None:
    world = World(hosts="a")
    world.ask("r1", WHOLE)
    world.ask("r2", WHOLE)
    world.wait(POLICY.patience + 0.1)
    assert world.rejected["r2"].kind is RejectKind.FULL
    assert world.rejected["r2"].retry_after >= 1.0


def test_a_fork_whose_host_is_lost_is_told_so() -> None:
    world = World(hosts="ab")
    host = world.ask("r1", WHOLE)
    world.ask("f", WHOLE, pinned=host)
    *_, dropped = [d for d in world.tell(HostLost(host, "gone")) if isinstance(d, DropHost)]
    assert dropped.boxes == ("r1.0",)
    assert world.rejected["f"].kind is RejectKind.GONE
    assert not world.ask("g", pinned=host)
    assert world.rejected["g"].kind is RejectKind.GONE


def test_silence_is_noticed_before_it_is_called_death() -> None:
    scheduler = Scheduler(POLICY)
    for name in "ab":
        scheduler.handle(HostJoined(name, SIZE), 0.0)
    for second in range(1, 7):
        scheduler.handle(HostReported("b", Resources(), second), float(second))
    (place,) = scheduler.handle(CreateRequested("r", "x", SMALL), 6.0)
    assert isinstance(place, Place)
    assert place.host == "b"
    assert "a" in scheduler.hosts
    lost: list[Decision] = []
    for second in range(7, 30):
        lost += scheduler.handle(HostReported("b", Resources(), second), float(second))
    assert [d.host for d in lost if isinstance(d, DropHost)] == ["a"]
