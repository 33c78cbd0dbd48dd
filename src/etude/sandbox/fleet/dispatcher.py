"""The dispatcher: the service that runs the scheduler, one per fleet. It turns calls into events for the scheduler, and
the scheduler's decisions into calls.

Commands and files do not pass through the dispatcher: a client talks to the host of its box directly. If the dispatcher
dies, boxes live on, and a new dispatcher asks the hosts which boxes and images they have.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etude.cluster.contract import ClusterError, DeadlineExceeded, Remote, ServiceDied
from etude.sandbox.contract import (
    BoxBusy,
    BoxSpec,
    Capability,
    Feature,
    ImageError,
    RequestRefused,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from etude.sandbox.fleet import events
from etude.sandbox.fleet.images import FleetImages, ImageCall
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.remote_errors import FleetFull
from etude.sandbox.fleet.resources import demand_of
from etude.sandbox.fleet.scheduler import Scheduler

if TYPE_CHECKING:
    from etude.sandbox.fleet.host import HostInventory

_FINAL = (RequestRefused, ImageError, BoxBusy)
"""Errors that would be the same on any other host, so the request is not tried elsewhere."""


MakeBoxes = Callable[[events.Place], Coroutine[Any, Any, None]]
"""Function that makes a request's boxes on the host that the scheduler chose."""


@dataclass(slots=True)
class OpenRequest:
    make: MakeBoxes
    answer: asyncio.Future[events.Granted]
    error: Exception | None = None
    """The last error with which a host answered the call to make the request's boxes; None if there was none."""


class Dispatcher:
    """The dispatcher service of a fleet. `hosts` maps the name of each sandbox host to its handle."""

    def __init__(self, hosts: dict[str, Remote], policy: Policy) -> None:
        self._remotes, self._policy = hosts, policy
        self._scheduler = Scheduler(policy)
        self._images = FleetImages(hosts, policy)
        self._begun, self._stalled = time.monotonic(), 0.0
        self._open_requests: dict[str, OpenRequest] = {}
        self._restarts = dict.fromkeys(hosts, 0)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._event_came = asyncio.Event()
        self._common: tuple[frozenset[Feature], frozenset[Capability]] | None = None
        self._drained: set[str] = set()
        self._image_turn = 0

    async def open(self) -> tuple[frozenset[Feature], frozenset[Capability]]:
        """Start all hosts, at the first call only. Return the features and capabilities that all of them have."""
        if self._common is None:
            facts = await asyncio.gather(*(self._join(name) for name in self._remotes))
            features = frozenset.intersection(*(found.features for found in facts))
            self._common = features, frozenset.intersection(*(found.capabilities for found in facts))
            self._spawn(self._tick_forever())
        return self._common

    # -- calls of clients

    async def create(self, request: str, owner: str, spec: BoxSpec) -> tuple[str, str, Remote]:
        """Make a box. Return its id, its host's name, and the handle of that host."""

        async def make(place: events.Place) -> None:
            known_there = replace(spec, image=await self._images.on_host(spec.image, place.host))
            await self._call(place.host, "create", place.boxes[0], owner, known_there)

        demand = demand_of(spec, self._policy.box_cpus)
        pinned = self._images.only_host_of(spec.image)
        wanted = events.CreateRequested(request, owner, demand, image=spec.image, pinned=pinned)
        granted = await self._await_grant(wanted, make)
        return granted.boxes[0], granted.host, self._remotes[granted.host]

    async def fork(self, request: str, owner: str, parent: str, count: int, kill: bool) -> tuple[str, ...]:
        """Fork a box on its host, and return the ids of its children. `kill`: end the parent's processes first.
        Otherwise the fork fails if they are writing files."""
        if count < 1:
            raise RequestRefused(f"fork into {count} boxes; at least 1 is needed")
        host = self._scheduler.host_of(parent)
        if not host:
            raise SandboxLost(f"box {parent} is gone")

        async def make(place: events.Place) -> None:
            await self._call(host, "fork", parent, place.boxes, owner, kill)

        demand = self._scheduler.hosts[host].boxes[parent]
        wanted = events.CreateRequested(request, owner, demand, count, pinned=host)
        granted = await self._await_grant(wanted, make)
        return granted.boxes

    async def drop(self, request: str) -> None:
        """Withdraw a request whose client no longer waits for it."""
        self._handle(events.RequestDropped(request))

    async def end(self, box: str) -> None:
        host = self._scheduler.host_of(box)
        if host:
            await self._destroy(box, host)
            self._handle(events.BoxEnded(box))

    async def renew(self, owner: str) -> None:
        """Extend the lease of the client `owner`. If a client's lease runs out, its boxes are destroyed."""
        self._handle(events.OwnerRenewed(owner))

    async def leave(self, owner: str) -> None:
        """End the lease of the client `owner`. Return when its boxes are gone."""
        self._handle(events.OwnerLeft(owner))
        await asyncio.gather(*[task for task in self._tasks if task.get_name() == "destroy"])

    async def image_host(self) -> tuple[str, Remote]:
        """Return the name and handle of the host that makes the next new image; hosts take turns."""
        names = sorted(self._scheduler.hosts)
        if not names:
            raise SandboxUnavailable("the fleet has no host; see the logs of its sandbox hosts")
        self._image_turn += 1
        name = names[self._image_turn % len(names)]
        return name, self._remotes[name]

    async def learn_image(self, image: str, host: str, image_call: ImageCall | None) -> None:
        """Record that a host has an image, and the call that made it (None for a snapshot)."""
        self._images.learn(image, host, image_call)

    # -- calls of operators

    async def drain(self, host: str, seconds: float) -> None:
        """Place no more boxes on the host, and close it once its boxes are gone, or after `seconds` at the latest."""
        if host not in self._scheduler.hosts:
            raise RequestRefused(f"no host {host!r}; there are {', '.join(sorted(self._scheduler.hosts))}")
        self._drained.add(host)
        self._handle(events.HostDraining(host, self._now() + seconds))

    async def census(self) -> dict[str, int]:
        """Return the number of boxes on each living host, including boxes that are still being made."""
        return {name: len(host.boxes) for name, host in sorted(self._scheduler.hosts.items())}

    # -- decisions

    def _handle(self, event: events.Event) -> None:
        for decision in self._scheduler.handle(event, self._now()):
            match decision:
                case events.Place():
                    self._spawn(self._make(decision))
                case events.Granted(request=request):
                    _settle(self._open_requests.pop(request).answer, decision)
                case events.Rejected(request=request):
                    open_request = self._open_requests.pop(request)
                    _settle(open_request.answer, _error_of(decision, open_request.error))
                case events.Destroy(box=box, host=host):
                    self._spawn(self._destroy(box, host), "destroy")
                case events.DropHost(host=host):
                    self._spawn(self._replace(host))
                case events.HostDrained(host=host):
                    self._spawn(self._retire(host))
        self._event_came.set()

    async def _await_grant(self, wanted: events.CreateRequested, make: MakeBoxes) -> events.Granted:
        """Give the scheduler a request for boxes and wait until they are made. Raises an error if the request fails."""
        answer: asyncio.Future[events.Granted] = asyncio.get_running_loop().create_future()
        self._open_requests[wanted.request] = OpenRequest(make, answer)
        self._handle(wanted)
        return await answer

    async def _make(self, place: events.Place) -> None:
        """Make a request's boxes on the host that the scheduler chose, and report the outcome to the scheduler."""
        open_request = self._open_requests[place.request]
        try:
            await open_request.make(place)
        except ServiceDied as death:
            self._handle(events.HostLost(place.host, str(death)))
        except (SandboxError, ClusterError) as error:
            open_request.error = error
            elsewhere = not isinstance(error, _FINAL)
            self._handle(events.CreateFailed(place.request, place.host, place.boxes, str(error), elsewhere))
        else:
            self._handle(events.CreateDone(place.request, place.host, place.boxes))

    async def _destroy(self, box: str, host: str) -> None:
        with contextlib.suppress(ClusterError):
            await self._call(host, "destroy", box)

    # -- hosts

    async def _call(self, host: str, method: str, *args: Any) -> Any:
        return await self._remotes[host].call(method, *args, deadline=self._policy.create_seconds)

    async def _join(self, name: str) -> HostInventory:
        """Start a host's backend and add the host to the scheduler."""
        facts: HostInventory = await self._call(name, "open")
        self._handle(events.HostJoined(name, facts.capacity, facts.held))
        for image, image_call in facts.images.items():
            self._images.learn(image, name, image_call)
        self._spawn(self._receive_reports(name))
        return facts

    async def _receive_reports(self, name: str) -> None:
        seen = 0
        while name in self._scheduler.hosts:
            asked_at = self._now()
            try:
                report = await self._remotes[name].call("report", seen, deadline=self._policy.lost_seconds)
            except ServiceDied as death:
                self._handle(events.HostLost(name, str(death)))
                return
            except DeadlineExceeded:
                continue  # The scheduler has a timer of its own for hosts that do not report.
            seen += len(report.ended)
            for box in report.ended:
                self._handle(events.BoxEnded(box))
            self._handle(events.HostReported(name, report.used, asked_at))
            await asyncio.sleep(self._policy.beat_seconds)

    async def _replace(self, name: str) -> None:
        """Kill the service of a lost host, then restart it, at most `Policy.restarts` times."""
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
            await self._call(name, "close")
        self._handle(events.HostLost(name, "it was drained"))

    # -- time

    def _now(self) -> float:
        """Return the time on the scheduler's clock: seconds since this dispatcher was made, without the time during
        which its process was suspended. So a suspension does not count as silence of the hosts."""
        return time.monotonic() - self._begun - self._stalled

    async def _tick_forever(self) -> None:
        """Wake the scheduler when one of its timers is due, and notice when this process was suspended."""
        beat = self._policy.beat_seconds
        while True:
            wake, now = self._scheduler.next_wake, self._now()
            nap = beat if wake is None else min(beat, max(0.0, wake - now))
            self._event_came.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(nap):
                    await self._event_came.wait()
            overslept = self._now() - now - nap
            if overslept > beat:
                self._stalled += overslept
            self._handle(events.Tick())

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> None:
        """Run `work` as a task with this name, and keep a reference to the task until it ends."""
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _settle(answer: asyncio.Future[events.Granted], outcome: events.Granted | Exception) -> None:
    """Set the result or error of a client's request, unless the client no longer waits for it."""
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _error_of(rejected: events.Rejected, last: Exception | None) -> Exception:
    match rejected.kind:
        case events.RejectKind.FULL:
            return FleetFull(f"the fleet has no room: {rejected.reason}", rejected.retry_after)
        case events.RejectKind.IMPOSSIBLE:
            return RequestRefused(f"{rejected.reason}; ask for less, or add larger hosts")
        case events.RejectKind.GONE | events.RejectKind.LEFT:
            return SandboxLost(rejected.reason)
        case events.RejectKind.FAILED:
            return last if isinstance(last, SandboxError) else SandboxUnavailable(rejected.reason)
