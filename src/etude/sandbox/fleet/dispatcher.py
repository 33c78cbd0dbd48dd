"""The dispatcher: the one service that runs the scheduler. It turns calls into events, and decisions into calls.

Commands and files do not pass through here, since a client talks to its box's host directly. If the dispatcher dies,
boxes live on; a new one asks the hosts which boxes and images they have.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from etude.cluster.contract import ClusterError, DeadlineExceeded, Remote, ServiceDied
from etude.sandbox.contract import (
    BoxBusy,
    BoxSpec,
    Feature,
    ImageError,
    RequestRefused,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from etude.sandbox.fleet import events
from etude.sandbox.fleet.errors import FleetFull
from etude.sandbox.fleet.images import FleetImages, Making
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.resources import demand_of
from etude.sandbox.fleet.scheduler import Scheduler

_FINAL = (RequestRefused, ImageError, BoxBusy)
"""Errors that would be the same on any other host."""


@dataclass(frozen=True, slots=True)
class Creation:
    owner: str
    spec: BoxSpec


@dataclass(frozen=True, slots=True)
class Forking:
    owner: str
    parent: str
    kill: bool


@dataclass(slots=True)
class Asked:
    """A request that a client is waiting for."""

    what: Creation | Forking
    answer: asyncio.Future[events.Granted]
    error: Exception | None = None
    """The error of the last host that was tried."""


class Dispatcher:
    def __init__(self, hosts: dict[str, Remote], policy: Policy) -> None:
        self._remotes, self._policy = hosts, policy
        self._scheduler = Scheduler(policy)
        self._images = FleetImages(hosts, policy)
        self._begun, self._deaf = time.monotonic(), 0.0
        self._asked: dict[str, Asked] = {}
        self._restarts = dict.fromkeys(hosts, 0)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._poked = asyncio.Event()
        self._features: frozenset[Feature] | None = None
        self._drained: set[str] = set()
        self._turn = 0

    async def open(self) -> frozenset[Feature]:
        """Joins the hosts at the first call; returns the features that all of them have."""
        if self._features is None:
            facts = await asyncio.gather(*(self._join(name) for name in self._remotes))
            self._features = frozenset.intersection(*facts)
            self._go(self._keep_time())
        return self._features

    # -- what clients ask

    async def create(self, request: str, owner: str, spec: BoxSpec) -> tuple[str, str, Remote]:
        """Makes a box; returns its id, its host's name, and the handle of that host."""
        demand = demand_of(spec, self._policy.box_cpus)
        pinned = self._images.only_host_of(spec.image)
        wanted = events.CreateRequested(request, owner, demand, image=spec.image, pinned=pinned)
        granted = await self._answered(wanted, Creation(owner, spec))
        return granted.boxes[0], granted.host, self._remotes[granted.host]

    async def fork(self, request: str, owner: str, parent: str, count: int, kill: bool) -> tuple[str, ...]:
        """Children are made on their parent's host: they share its files there, and elsewhere would be costly."""
        if count < 1:
            raise RequestRefused(f"fork into {count} boxes; at least 1 is needed")
        host = self._scheduler.host_of(parent)
        if not host:
            raise SandboxLost(f"box {parent} is gone")
        demand = self._scheduler.hosts[host].boxes[parent]
        wanted = events.CreateRequested(request, owner, demand, count, pinned=host)
        granted = await self._answered(wanted, Forking(owner, parent, kill))
        return granted.boxes

    async def drop(self, request: str) -> None:
        self._tell(events.RequestDropped(request))

    async def end(self, box: str) -> None:
        host = self._scheduler.host_of(box)
        if host:
            with contextlib.suppress(ClusterError):
                await self._remotes[host].call("destroy", box, deadline=self._policy.create_seconds)
            self._tell(events.BoxEnded(box))

    async def renew(self, owner: str) -> None:
        self._tell(events.OwnerRenewed(owner))

    async def leave(self, owner: str) -> None:
        """Ends the owner's lease; returns when its boxes are gone."""
        self._tell(events.OwnerLeft(owner))
        await asyncio.gather(*[task for task in self._tasks if task.get_name() == "destroy"])

    async def image_host(self) -> tuple[str, Remote]:
        """The host where the next new image is made; hosts take turns."""
        names = sorted(self._scheduler.hosts)
        if not names:
            raise SandboxUnavailable("the fleet has no host; see the logs of its sandbox hosts")
        self._turn += 1
        name = names[self._turn % len(names)]
        return name, self._remotes[name]

    async def learn_image(self, image: str, host: str, making: Making | None) -> None:
        self._images.learn(image, host, making)

    # -- what operators ask

    async def drain(self, host: str, seconds: float) -> None:
        """Places nothing more on the host, and ends it when its boxes are gone, or after that time."""
        if host not in self._scheduler.hosts:
            raise RequestRefused(f"no host {host!r}; there are {', '.join(sorted(self._scheduler.hosts))}")
        self._drained.add(host)
        self._tell(events.HostDraining(host, self._now() + seconds))

    async def census(self) -> dict[str, int]:
        """Number of boxes on each living host, including those that are still being made."""
        return {name: len(host.boxes) for name, host in sorted(self._scheduler.hosts.items())}

    # -- decisions

    def _tell(self, event: events.Event) -> None:
        for decision in self._scheduler.handle(event, self._now()):
            match decision:
                case events.Place():
                    self._go(self._make(decision))
                case events.Granted(request=request):
                    _settle(self._asked.pop(request).answer, decision)
                case events.Rejected(request=request):
                    asked = self._asked.pop(request)
                    _settle(asked.answer, _error_of(decision, asked.error))
                case events.Destroy():
                    self._go(self._destroy(decision), "destroy")
                case events.DropHost():
                    self._go(self._replace(decision.host))
                case events.HostDrained(host=host):
                    self._go(self._retire(host))
        self._poked.set()

    async def _answered(self, wanted: events.CreateRequested, what: Creation | Forking) -> events.Granted:
        answer: asyncio.Future[events.Granted] = asyncio.get_running_loop().create_future()
        self._asked[wanted.request] = Asked(what, answer)
        self._tell(wanted)
        return await answer

    async def _make(self, place: events.Place) -> None:
        asked = self._asked[place.request]
        remote, deadline = self._remotes[place.host], self._policy.create_seconds
        try:
            match asked.what:
                case Creation(owner, spec):
                    spec = replace(spec, image=await self._images.on_host(spec.image, place.host))
                    await remote.call("create", place.boxes[0], owner, spec, deadline=deadline)
                case Forking(owner, parent, kill):
                    await remote.call("fork", parent, place.boxes, owner, kill, deadline=deadline)
        except ServiceDied as death:
            self._tell(events.HostLost(place.host, str(death)))
        except (SandboxError, ClusterError) as error:
            asked.error = error
            elsewhere = not isinstance(error, _FINAL)
            self._tell(events.CreateFailed(place.request, place.host, place.boxes, str(error), elsewhere))
        else:
            self._tell(events.CreateDone(place.request, place.host, place.boxes))

    async def _destroy(self, what: events.Destroy) -> None:
        with contextlib.suppress(ClusterError):
            await self._remotes[what.host].call("destroy", what.box, deadline=self._policy.create_seconds)

    # -- hosts

    async def _join(self, name: str) -> frozenset[Feature]:
        facts = await self._remotes[name].call("open", deadline=self._policy.create_seconds)
        self._tell(events.HostJoined(name, facts.capacity, facts.held))
        for image, making in facts.images.items():
            self._images.learn(image, name, making)
        self._go(self._listen(name))
        return frozenset(facts.features)

    async def _listen(self, name: str) -> None:
        """Receives the host's reports, for as long as the host belongs to the fleet."""
        seen = 0
        while name in self._scheduler.hosts:
            asked_at = self._now()
            try:
                report = await self._remotes[name].call("report", seen, deadline=self._policy.lost_seconds)
            except ServiceDied as death:
                self._tell(events.HostLost(name, str(death)))
                return
            except DeadlineExceeded:
                continue  # The scheduler's own timer notices the host's silence.
            seen += len(report.ended)
            for box in report.ended:
                self._tell(events.BoxEnded(box))
            self._tell(events.HostReported(name, report.used, asked_at))
            await asyncio.sleep(self._policy.beat_seconds)

    async def _replace(self, name: str) -> None:
        """Kills a host that was given up, whether or not it answers, and restarts it if its node still lives."""
        remote = self._remotes[name]
        await remote.kill()
        while name not in self._drained and self._restarts[name] < self._policy.restarts:
            self._restarts[name] += 1
            try:
                await remote.restart(deadline=self._policy.create_seconds)
                await self._join(name)
                return
            except (ClusterError, SandboxError):
                await asyncio.sleep(self._policy.beat_seconds * 2 ** self._restarts[name])

    async def _retire(self, name: str) -> None:
        with contextlib.suppress(ClusterError):
            await self._remotes[name].call("close", deadline=self._policy.create_seconds)
        self._tell(events.HostLost(name, "it was drained"))

    # -- time

    def _now(self) -> float:
        """Seconds in which this process could receive: what it slept through is not a host's silence."""
        return time.monotonic() - self._begun - self._deaf

    async def _keep_time(self) -> None:
        beat = self._policy.beat_seconds
        while True:
            wake, now = self._scheduler.next_wake, self._now()
            nap = beat if wake is None else min(beat, max(0.0, wake - now))
            self._poked.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(nap):
                    await self._poked.wait()
            overslept = self._now() - now - nap
            if overslept > beat:
                self._deaf += overslept
            self._tell(events.Tick())

    def _go(self, work: Coroutine[Any, Any, Any], name: str = "") -> None:
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _settle(answer: asyncio.Future[events.Granted], outcome: events.Granted | Exception) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _error_of(rejected: events.Rejected, said: Exception | None) -> Exception:
    match rejected.why:
        case events.Why.FULL:
            return FleetFull(f"the fleet has no room: {rejected.reason}", rejected.retry_after)
        case events.Why.IMPOSSIBLE:
            return RequestRefused(f"{rejected.reason}; ask for less, or add larger hosts")
        case events.Why.GONE | events.Why.LEFT:
            return SandboxLost(rejected.reason)
        case events.Why.FAILED:
            return said if isinstance(said, SandboxError) else SandboxUnavailable(rejected.reason)
