"""Records once a second in the journal how much CPU time each service used during RL.

A service is charged for all its descendants, so a worker is charged for its sandboxes. One pass over /proc covers all
processes and takes about 3 ms with 150 of them. Only the driver's machine is measured, and only if it has /proc.
Processes that a container engine runs are not descendants of a service, so they count as other users' load.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from etude.cluster import ClusterError
from etude.engine.protocol import EngineError, EngineStats
from etude.journal import Journal
from etude.rl.crew import Crew

DRIVER = "driver"
"""Name of the driver, which is this process, among the services in `Reading.used`. The driver's CPU time includes that
of its descendants that belong to no service, such as the fork server."""
_EVERY_SECONDS = 1.0
_ANSWER_SECONDS = 1.0
"""Timeout of asking the engine for its idle time: a dead engine must not hold up the measurement."""
_PROC = Path("/proc")
_IDLE = (3, 4)
"""Indices of the per-CPU counters in /proc/stat that do not count as busy: idle and iowait."""
_COUNTERS = 8
"""Number of per-CPU counters to read. The later ones (guest time) are already contained in the first two."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Cumulative CPU seconds of the cores and of each service of the run, read at one moment."""

    time: float
    cores: int
    busy: float
    """CPU seconds for which the cores that this process may use were busy, whatever process ran on them."""
    used: dict[str, float]
    """CPU seconds used, by service name, with this process under the name DRIVER."""


def read_cores(services: Mapping[str, int], proc: Path = _PROC) -> Reading | None:
    """Read the CPU time of `services`, given as name and pid. Return None where /proc does not provide it."""
    try:
        cores, busy = _busy_seconds(proc)
        processes = _processes(proc)
    except (OSError, ValueError, IndexError):
        return None
    own = os.getpid()
    owners: dict[int, str] = {own: DRIVER} | {pid: name for name, pid in services.items() if pid != own}
    used = dict.fromkeys((DRIVER, *owners.values()), 0.0)
    for pid, (_, seconds) in processes.items():
        place = pid
        while place not in owners and place in processes:
            place = processes[place][0]
        if place in owners:
            used[owners[place]] += seconds
    return Reading(time.monotonic(), cores, busy, used) if cores else None


def _busy_seconds(proc: Path) -> tuple[int, float]:
    lines = [line.split() for line in (proc / "stat").read_text(encoding="ascii").splitlines()]
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    counters = [[int(value) for value in values[:_COUNTERS]] for name, *values in lines if name in mine]
    ticks = sum(value for core in counters for place, value in enumerate(core) if place not in _IDLE)
    return len(counters), ticks / os.sysconf("SC_CLK_TCK")


def _processes(proc: Path) -> dict[int, tuple[int, float]]:
    """Return parent pid and CPU seconds by pid; the seconds include those of children that were waited for."""
    found: dict[int, tuple[int, float]] = {}
    for place in proc.iterdir():
        if place.name.isdigit():
            with suppress(OSError):  # the process ended meanwhile
                stat = (place / "stat").read_bytes()
                fields = stat[stat.rindex(b")") + 2 :].split()
                found[int(place.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


class CoreMeter:
    def __init__(self, crew: Crew, journal: Journal, read: Callable[[Mapping[str, int]], Reading | None] = read_cores):
        self._crew, self._journal, self._read = crew, journal, read
        self._last = read(self._services())
        self._engine_idle: float | None = None
        """Seconds that the engine has been idle since its start, as last reported."""

    async def watch(self, every: float = _EVERY_SECONDS) -> None:
        """Record the CPU time every `every` seconds, and that of the unfinished interval when cancelled."""
        try:
            while self._last is not None:
                await asyncio.sleep(every)
                self._tell(await self._engine_waited())
        finally:
            self._tell(0.0)

    async def _engine_waited(self) -> float:
        """Return the seconds the engine had no request since it was last asked; 0 if it does not answer."""
        with suppress(ClusterError, EngineError):  # whoever needs the engine reports its failure
            stats: EngineStats = await self._crew.engine.remote.call("stats", deadline=_ANSWER_SECONDS)
            before, self._engine_idle = self._engine_idle, stats.seconds_idle
            if before is not None:
                return max(stats.seconds_idle - before, 0.0)  # a restarted engine counts from its own start
        return 0.0

    def _tell(self, engine_waited: float) -> None:
        now = self._read(self._services())
        if now is not None and self._last is not None and now.time > self._last.time:
            # The CPU time of a killed service is no longer visible, so the difference may be negative: clamp it to 0.
            used = {name: max(seconds - self._last.used.get(name, 0.0), 0.0) for name, seconds in now.used.items()}
            self._journal.event(
                "cores",
                seconds=round(now.time - self._last.time, 4),
                cores=now.cores,
                busy=round(max(now.busy - self._last.busy, 0.0), 2),
                used={name: round(seconds, 2) for name, seconds in used.items()},
                engine_waited=round(engine_waited, 4),
            )
            self._last = now

    def _services(self) -> dict[str, int]:
        crew = self._crew
        everybody = [crew.trainer, crew.engine, *crew.workers, *([crew.evaluator] if crew.evaluator else [])]
        return {service.name: service.local_pid for service in everybody if service.local_pid is not None}
