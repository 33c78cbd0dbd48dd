"""Runs the real scheduler on a simulated fleet: seeded arrivals, lifetimes, loads, and hosts that die or drain.

Only time is simulated: `placements_per_second` is based on the CPU time that the scheduler's own code takes.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from etude.sandbox.fleet import events
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.resources import Capacity, Resources
from etude.sandbox.fleet.scheduler import Scheduler

KINDS = (
    # (what a box asks for, fraction of it that the box comes to use, relative frequency)
    (Resources(0.25, 512, 512), 0.6, 60),
    (Resources(0.5, 1_024, 1_024), 0.5, 25),
    (Resources(1.0, 4_096, 2_048), 0.4, 10),
    (Resources(4.0, 8_192, 16_384), 0.7, 5),
)

HOST = Capacity(Resources(96, 393_216, 2_097_152), boxes=1_000)


@dataclass(frozen=True, slots=True)
class Scene:
    boxes: int = 100_000
    """Number of living boxes when the fleet is full."""
    hosts: int = 500
    seed: int = 1
    host: Capacity = HOST
    fill_seconds: float = 300.0
    """Time in which the fleet is filled."""
    steady_seconds: float = 60.0
    """Time after that, in which as many boxes come as go."""
    life_seconds: float = 600.0
    """Mean lifetime of a box."""
    create_seconds: float = 0.02
    fails: float = 0.002
    """Fraction of creations that fail."""
    deaths: int = 5
    drains: int = 5
    images: int = 400
    owners: int = 40
    report_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    boxes: int
    """Maximum number of living boxes."""
    hosts: int
    placements: int
    placements_per_second: float
    packing: float
    """The fewest hosts that could hold the living boxes, divided by the hosts that have any: the mean over the steady
    time."""
    p99_wait_ms: float
    """Time from request to finished box, of the granted requests."""
    rejected: int
    lost: int
    worst: float
    """A host's highest use relative to its ceiling: above 1 if boxes grew, or a report was off, after placement."""


class Simulation:
    def __init__(self, scene: Scene, policy: Policy) -> None:
        self.scene, self.policy = scene, policy
        self._chance = random.Random(scene.seed)
        self._scheduler = Scheduler(policy)
        self._now, self._thinking = 0.0, 0.0
        self._coming: list[tuple[float, int, Any]] = []
        self._count = 0
        self._kind_of: dict[str, tuple[Resources, float]] = {}
        self._living: dict[str, tuple[str, Resources]] = {}
        """Host and use of every living box."""
        self._used: dict[str, list[float]] = {}
        self._on: dict[str, int] = {}
        self._asked: dict[str, float] = {}
        self._waits: list[float] = []
        self._packings: list[float] = []
        self._placed = self._rejected = self._lost = self._peak = 0
        self._worst = 0.0

    def run(self) -> Outcome:
        scene = self.scene
        end = scene.fill_seconds + scene.steady_seconds
        for number in range(scene.hosts):
            name = f"host-{number}"
            self._used[name], self._on[name] = [0.0, 0.0, 0.0], 0
            self._tell(events.HostJoined(name, scene.host))
            self._later(self._chance.random() * scene.report_seconds, ("report", name))
        for number in range(scene.owners):
            self._later(self._chance.random() * self.policy.lease_seconds / 3, ("renew", f"owner-{number}"))
        for fate, times in (("die", scene.deaths), ("drain", scene.drains)):
            for _ in range(times):
                self._later(self._chance.uniform(0.3, 0.95) * end, (fate, ""))
        self._later(0.0, ("arrive", ""))
        self._later(scene.fill_seconds, ("measure", ""))
        while self._coming and self._coming[0][0] <= end:
            moment, _, what = heappop(self._coming)
            wake = self._scheduler.next_wake
            if wake is not None and wake < moment:  # A real dispatcher would have woken up at this time.
                heappush(self._coming, (moment, self._next(), what))
                moment, what = max(wake, self._now), ("event", events.Tick())
            self._now = moment
            self._happen(*what)
        return self._outcome()

    def _outcome(self) -> Outcome:
        waits = sorted(self._waits)
        return Outcome(
            boxes=self._peak,
            hosts=self.scene.hosts,
            placements=self._placed,
            placements_per_second=self._placed / self._thinking,
            packing=sum(self._packings) / max(1, len(self._packings)),
            p99_wait_ms=1000 * waits[int(0.99 * (len(waits) - 1))] if waits else 0.0,
            rejected=self._rejected,
            lost=self._lost,
            worst=self._worst,
        )

    # -- the world

    def _happen(self, what: str, about: Any) -> None:
        match what:
            case "arrive":
                self._arrive()
            case "report" if about in self._used:
                self._report(about)
            case "renew":
                self._tell(events.OwnerRenewed(about))
                self._later(self.policy.lease_seconds / 3, ("renew", about))
            case "event":
                self._tell(about)
            case "end" if about in self._living:
                self._remove(about)
                self._tell(events.BoxEnded(about))
            case "die":
                self._tell(events.HostLost(self._some_host(), "its node died"))
            case "drain":
                self._tell(events.HostDraining(self._some_host(), self._now + 30.0))
            case "measure":
                self._packings.append(self._packing())
                self._later(1.0, ("measure", ""))

    def _arrive(self) -> None:
        scene = self.scene
        request = f"r{self._next()}"
        (kind,) = self._chance.choices(KINDS, [often for _, _, often in KINDS])
        self._kind_of[request], self._asked[request] = kind[:2], self._now
        owner, image = self._chance.randrange(scene.owners), self._chance.randrange(scene.images)
        self._tell(events.CreateRequested(request, f"owner-{owner}", kind[0], image=f"image-{image}"))
        # Some of the boxes that come while the fleet fills end before it is full; with exponential lifetimes, this rate
        # makes up for them.
        filling = scene.boxes / scene.life_seconds / (1 - math.exp(-scene.fill_seconds / scene.life_seconds))
        rate = filling if self._now < scene.fill_seconds else scene.boxes / scene.life_seconds
        self._later(self._chance.expovariate(rate), ("arrive", ""))

    def _report(self, name: str) -> None:
        noise = self._chance.uniform(0.95, 1.05)
        cpus, memory, disk = self._used[name]
        limit = self._scheduler.hosts[name].limit
        self._worst = max(self._worst, cpus / limit.cpus, memory / limit.memory_mb, disk / limit.disk_mb)
        self._tell(events.HostReported(name, Resources(cpus * noise, memory, disk), self._now))
        self._later(self.scene.report_seconds, ("report", name))

    def _tell(self, event: events.Event) -> None:
        begun = time.thread_time()
        decisions = self._scheduler.handle(event, self._now)
        self._thinking += time.thread_time() - begun
        for decision in decisions:
            match decision:
                case events.Place(request=request, host=host, boxes=boxes):
                    self._placed += 1
                    done: events.Event = events.CreateDone(request, host, boxes)
                    if self._chance.random() < self.scene.fails:
                        done = events.CreateFailed(request, host, boxes, "simulated", elsewhere=True)
                    self._later(self._chance.expovariate(1 / self.scene.create_seconds), ("event", done))
                case events.Granted(request=request, host=host, boxes=boxes):
                    self._waits.append(self._now - self._asked.pop(request))
                    self._add(request, boxes[0], host)
                case events.Rejected(request=request):
                    self._rejected += 1
                    del self._asked[request], self._kind_of[request]
                case events.Destroy(box=box):
                    self._remove(box)
                case events.DropHost(host=host, boxes=boxes):
                    self._lost += len(boxes)
                    for box in boxes:
                        self._remove(box)
                    self._used.pop(host, None)
                    self._on.pop(host, None)
                case events.HostDrained(host=host):
                    self._later(0.0, ("event", events.HostLost(host, "drained")))

    def _add(self, request: str, box: str, host: str) -> None:
        asked, part = self._kind_of.pop(request)
        part *= self._chance.uniform(0.5, 1.5)
        use = Resources(asked.cpus * part, asked.memory_mb * part, asked.disk_mb * part)
        self._living[box] = host, use
        self._weigh(host, use, 1)
        self._peak = max(self._peak, len(self._living))
        self._later(self._chance.expovariate(1 / self.scene.life_seconds), ("end", box))

    def _remove(self, box: str) -> None:
        if box in self._living:
            host, use = self._living.pop(box)
            self._weigh(host, use, -1)

    def _weigh(self, host: str, use: Resources, sign: int) -> None:
        if host in self._used:
            used = self._used[host]
            used[0] += sign * use.cpus
            used[1] += sign * use.memory_mb
            used[2] += sign * use.disk_mb
            self._on[host] += sign

    def _packing(self) -> float:
        total, ceiling = self.scene.host.total, self.policy.ceiling
        sums = [sum(column) for column in zip(*self._used.values(), strict=True)]
        limits = (total.cpus * ceiling.cpus, total.memory_mb * ceiling.memory_mb, total.disk_mb * ceiling.disk_mb)
        by_use = max(math.ceil(used / limit) for used, limit in zip(sums, limits, strict=True))
        least: int = max(by_use, math.ceil(len(self._living) / self.scene.host.boxes))
        return least / max(1, sum(1 for count in self._on.values() if count))

    # -- chance and time

    def _some_host(self) -> str:
        return self._chance.choice(sorted(self._used))

    def _later(self, seconds: float, what: tuple[str, Any]) -> None:
        heappush(self._coming, (self._now + seconds, self._next(), what))

    def _next(self) -> int:
        self._count += 1
        return self._count
