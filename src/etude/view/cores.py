"""Where the cores were while RL ran: of every core-second, who used it or, where nobody did, who waited for whom.

The journal's rows `cores` say who used how much, second by second; its waits say who waited. An idle core-second is
shared by those who waited then, each as much as it waited and computed nothing itself. Where nobody waited, or those
who did were computing all the same, nobody is named: the work at hand took fewer cores than there are.

Invariant: the parts of a sample sum up to its cores times its seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.journal import Entry, Span

Pair = tuple[str, str]
"""Who waits, and for whom."""

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
"""By how the name of a process begins; in the order in which they are drawn."""
USERS = (*_NAMES.values(), OTHERS)
_WORK = {("driver", "rollouts"), ("driver", "trainer")}
"""To wait for these is what the driver is there for: it wants no core."""
_SHORTEST = 1e-6
"""Seconds, as the journal rounds them."""
_TOLD_SHARE = 0.005
"""A wait that took less of all core-seconds has no line of its own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A row of the journal: what was used since the one before it."""

    end: float
    seconds: float
    cores: int
    busy: float
    """Core-seconds in which these cores had anything to do, whoever gave it to them."""
    used: dict[str, float]
    """CPU seconds by process."""
    engine_waited: float = 0.0
    """Seconds in which the engine had no request."""


@dataclass(slots=True)
class Parts:
    """Core-seconds."""

    used: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By one of USERS."""
    idle: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By "who for whom", or NOBODY."""

    @property
    def seconds(self) -> float:
        return sum(self.used.values()) + sum(self.idle.values())

    @property
    def users(self) -> list[str]:
        """In the order of USERS, whoever used anything."""
        known = [name for name in USERS if self.used.get(name, 0.0) > 0]
        return known + sorted(name for name, seconds in self.used.items() if seconds > 0 and name not in USERS)

    @property
    def waits(self) -> list[str]:
        """The longest first, what names nobody last."""
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
    """The parts of each sample."""
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
    if busy > there:  # clocks count in ticks, and are not read all at once
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
    """Seconds in which a process waited and computed nothing, by pair."""
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
    """By the place of a sample, how many of its seconds lie in spans that do not overlap."""
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
    """What hardly anybody waited for is told together."""
    whole = summed(parts)
    few = [name for name, seconds in whole.idle.items() if name != NOBODY and seconds < _TOLD_SHARE * whole.seconds]
    for one in parts:
        if rest := sum(one.idle.pop(name, 0.0) for name in few):
            one.idle[OTHER_WAITS] = rest
