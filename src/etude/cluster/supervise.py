"""A supervised service: any caller that finds it dead restarts it, up to a maximum number of times. The journal records
each start, with its reason and pid.

However many calls were in flight when the service died, it is restarted once. `Supervised.call` repeats its call after
a restart, so use it only for methods that may safely be repeated. For all others, use `remote.call` and `heal`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from etude.cluster.contract import Cluster, DeadlineExceeded, Remote, ServiceDied
from etude.journal import Journal
from etude.recipe.compute import ClusterRecipe

T = TypeVar("T")


OnEvent = Callable[..., object]
"""Called with kind and fields at every start of a supervised service, for example `Journal.event`."""


class Supervised:
    """A service that is restarted when it dies, at most `restarts` times."""

    def __init__(
        self,
        remote: Remote,
        restarts: int,
        *,
        on_event: OnEvent | None = None,
        start_deadline: float = 60.0,
        health_deadline: float = 60.0,
    ) -> None:
        self.remote, self.restarts = remote, restarts
        self.incarnation = 1
        """How often the service has been started. A caller that finds the service dead gives `heal` the number that it
        saw, so that `heal` restarts the service only once, however many callers report the same death."""
        self.used = 0
        """Number of restarts so far."""
        self.local_pid: int | None = None
        """Pid of the service's current process, set by `record_start`; None if the process is on another machine."""
        self._on_event, self._start_deadline, self._health_deadline = on_event, start_deadline, health_deadline
        self._healing = asyncio.Lock()

    @property
    def name(self) -> str:
        return self.remote.name

    async def call(self, method: str, *args: Any, deadline: float, **kwargs: Any) -> Any:
        """Call a method of the service. Whenever the service dies, restart it and repeat the call."""
        while True:
            seen = self.incarnation
            try:
                return await self.remote.call(method, *args, deadline=deadline, **kwargs)
            except ServiceDied as death:
                await self.heal(seen, str(death))

    async def heal(self, seen: int, reason: str) -> None:
        """Restart the service, unless another caller has done so since its start number `seen` (see `incarnation`).
        Raise ServiceDied once all restarts are used up."""
        async with self._healing:
            while self.incarnation == seen:
                if self.used >= self.restarts:
                    raise ServiceDied(f"{reason}; given up after {self.used} restarts (cluster.restarts)")
                self.used += 1
                try:
                    await self.remote.restart(deadline=self._start_deadline)
                except ServiceDied as death:
                    reason = f"{death}, while it was being restarted"
                    continue
                self.incarnation += 1
                await self.record_start(reason)

    async def still_serves(self, seen: int) -> bool:
        """Whether the service is alive and has not been restarted since its start number `seen` (see `incarnation`)."""
        return (await self.remote.health()).alive and self.incarnation == seen

    async def watch(self, every: float, ask: str = "") -> None:
        """Check every `every` seconds whether the service is dead, and restart it if so. Runs until cancelled. With
        `ask`, the name of a method, also raise the exception with which the method says that the service is of no more
        use."""
        while True:
            await asyncio.sleep(every)
            seen = self.incarnation
            # The deadline is long, so that a slow process on a busy machine is not taken for dead.
            health = await self.remote.health(deadline=self._health_deadline)
            if not health.alive:
                await self.heal(seen, f"{self.name} was found dead: {health.detail}")
            elif ask:
                with suppress(ServiceDied, DeadlineExceeded):  # the next check finds out
                    await self.remote.call(ask, deadline=self._health_deadline)

    async def run_watched(self, work: Coroutine[Any, Any, T], *, every: float = 1.0, ask: str = "") -> T:
        """Await `work`, which needs the service, and return its result. Meanwhile restart the service if it dies;
        raise ServiceDied when its restarts are used up, or what the method `ask` raises."""
        watching, working = asyncio.create_task(self.watch(every, ask)), asyncio.create_task(work)
        both: set[asyncio.Task[Any]] = {watching, working}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching
            return await working
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def record_start(self, reason: str = "") -> None:
        """Report the current process to `on_event`. `reason` is why the previous one had to be replaced."""
        health = await self.remote.health()
        self.local_pid = health.pid if health.here else None
        if self._on_event is not None:
            start = {"pid": health.pid, "incarnation": self.incarnation, "reason": reason}
            self._on_event("service_started", service=self.name, **start)


async def start_supervised(
    cluster: Cluster, limits: ClusterRecipe, journal: Journal, name: str, service: str, *args: Any, cpus: float = 0.1
) -> Supervised:
    """Start a service that may be restarted up to `limits.restarts` times."""
    seconds = limits.start_seconds
    async with journal.waiting(on=name, deadline=seconds):
        remote = await cluster.start(name, service, *args, cpus=cpus, deadline=seconds)
    supervised = Supervised(
        remote,
        limits.restarts,
        on_event=journal.event,
        start_deadline=seconds,
        health_deadline=limits.call_seconds,
    )
    await supervised.record_start()
    return supervised
