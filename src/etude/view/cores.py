"""Attribution of CPU cores during RL: which process used each core-second or, if the core was idle, which process
waited for what.

The journal's entries `cores` give the CPU time per process, second by second; its entries `wait` give the waits. Idle
core-seconds are divided among the processes that waited at that time, in proportion to how long each waited without
computing. The rest of the idle time is attributed to nobody: the work then needed fewer cores than there are.

Invariant: nothing is lost. The shares into which one entry `cores` is divided sum to its cores times its seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.journal import Entry, Span

Pair = tuple[str, str]
"""A wait, as (name of the waiting process, what it waits for)."""

OTHERS = "others on this machine"
NOBODY = "nobody (too little work at once)"
OTHER_WAITS = "other waits"
_NAMES = {
    "engine": "engine",
    "trainer": "trainer",
    "worker": "workers, their boxes",
    "evaluator": "evaluator, its boxes",
    "driver": "driver, ray",
}
"""Names of processes in the plot, in drawing order, by the beginning of their name in the journal."""
USERS = (*_NAMES.values(), OTHERS)
_WORK = {("driver", "rollouts"), ("driver", "trainer")}
"""Waits that are no reason for idle cores: the driver's job is to wait for rollouts and for the trainer."""
_SHORTEST = 1e-6
"""Shortest wait that counts, in seconds. The journal rounds to this value."""
_TOLD_SHARE = 0.005
"""Share of all core-seconds below which a wait is not shown by name, but under "other waits"."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One entry `cores` of the journal: the CPU use since the previous entry."""

    end: float
    seconds: float
    cores: int
    busy: float
    """Core-seconds for which cores were busy, with this run or with other programs."""
    used: dict[str, float]
    """CPU seconds used by each process of the run, by its name."""
    engine_waited: float = 0.0
    """Seconds since the previous entry in which the engine had no requests."""


@dataclass(slots=True)
class Parts:
    """Core-seconds of a time span, divided among the processes that used cores and the waits that left cores idle."""

    used: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Used core-seconds by group of processes (USERS)."""
    idle: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Idle core-seconds by wait, such as "engine for requests"; NOBODY has those to which no wait belongs."""

    @property
    def seconds(self) -> float:
        return sum(self.used.values()) + sum(self.idle.values())

    @property
    def users(self) -> list[str]:
        """Names of the groups of processes that used CPU time, in the order of USERS; all others come last."""
        known = [name for name in USERS if self.used.get(name, 0.0) > 0]
        return known + sorted(name for name, seconds in self.used.items() if seconds > 0 and name not in USERS)

    @property
    def waits(self) -> list[str]:
        """Names of the waits that left cores idle, longest first. OTHER_WAITS (short waits together) and NOBODY (idle
        time without a wait) come last."""
        found = [name for name, seconds in self.idle.items() if seconds > 0]
        return sorted(found, key=lambda name: (name == NOBODY, name == OTHER_WAITS, -self.idle[name], name))


def samples_of(entries: Iterable[Entry]) -> list[Sample]:
    found: list[Sample] = []
    for entry in entries:
        if entry.kind == "cores":
            row: dict[str, Any] = entry.fields
            shown = (row["seconds"], row["cores"], row["busy"], row["used"], row["engine_waited"])
            found.append(Sample(entry.time, *shown))
    return sorted(found, key=lambda sample: sample.end)


def attributed(samples: Sequence[Sample], waits: Mapping[Pair, Sequence[Span]]) -> list[Parts]:
    waited: list[dict[Pair, float]] = [{("engine", "requests"): sample.engine_waited} for sample in samples]
    for pair, spans in waits.items():
        if pair not in _WORK:
            for place, seconds in _covered(samples, spans).items():
                waited[place][pair] = seconds
    parts = [_parts(sample, pairs) for sample, pairs in zip(samples, waited, strict=True)]
    _together(parts)
    return parts


def _parts(sample: Sample, waited: Mapping[Pair, float]) -> Parts:
    parts = Parts()
    for process, seconds in sample.used.items():
        parts.used[_user(process)] += seconds
    parts.used[OTHERS] = max(sample.busy - sum(sample.used.values()), 0.0)
    there, busy = sample.cores * sample.seconds, sum(parts.used.values())
    if busy > there:  # possible, since CPU clocks count in ticks and are not read at the same moment
        for name in parts.used:
            parts.used[name] *= there / busy
    idle = max(there - sum(parts.used.values()), 0.0)
    free = _waited_only(sample, waited)
    named = idle * min(sum(free.values()) / sample.seconds, 1.0)
    for (who, on), seconds in free.items():
        parts.idle[f"{_user(who).partition(',')[0]} for {on}"] += named * seconds / sum(free.values())
    parts.idle[NOBODY] = idle - named
    return parts


def _waited_only(sample: Sample, waited: Mapping[Pair, float]) -> dict[Pair, float]:
    """Return, for each wait of the sample, the seconds in which the process waited without computing. `waited` has the
    seconds of each wait, including those in which the process computed."""
    by_process: defaultdict[str, float] = defaultdict(float)
    for (who, _), seconds in waited.items():
        by_process[who] += seconds
    free: dict[Pair, float] = {}
    for (who, on), seconds in waited.items():
        only = min(by_process[who], sample.seconds - sample.used.get(who, 0.0))
        if min(seconds, only) > _SHORTEST:
            free[who, on] = only * seconds / by_process[who]
    return free


def _covered(samples: Sequence[Sample], spans: Sequence[Span]) -> dict[int, float]:
    """Return how many seconds of each sample lie in the spans, by the sample's index. The spans must not overlap."""
    ends = [sample.end for sample in samples]
    found: dict[int, float] = {}
    for start, end in spans:
        place = bisect_right(ends, start)
        while place < len(samples) and samples[place].end - samples[place].seconds < end:
            begun = samples[place].end - samples[place].seconds
            found[place] = found.get(place, 0.0) + min(end, samples[place].end) - max(start, begun)
            place += 1
    return found


def _user(process: str) -> str:
    return next((name for start, name in _NAMES.items() if process.startswith(start)), process)


def summed(parts: Iterable[Parts]) -> Parts:
    whole = Parts()
    for one in parts:
        for seconds, added in ((whole.used, one.used), (whole.idle, one.idle)):
            for name in added:
                seconds[name] += added[name]
    return whole


def _together(parts: Sequence[Parts]) -> None:
    """Merge waits with a negligible share of the time into OTHER_WAITS, in place."""
    whole = summed(parts)
    few = [name for name, seconds in whole.idle.items() if name != NOBODY and seconds < _TOLD_SHARE * whole.seconds]
    for one in parts:
        if rest := sum(one.idle.pop(name, 0.0) for name in few):
            one.idle[OTHER_WAITS] = rest
