"""What must not matter to a verdict: time zone, language, hash seed, order of the tests, the clock, a busy machine.

A grading for a score runs under the usual conditions. The gate runs a task's reference under others, so that a suite
which holds only in one place, at one time or in one order is found out before anybody learns from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

_FAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")


@dataclass(frozen=True, slots=True)
class Conditions:
    name: str = "usual"
    env: tuple[tuple[str, str], ...] = ()
    """Variables of every command in the grading's boxes, over the image's own; what a verifier fixes stays fixed."""
    order: int | None = None
    """Seed of the order in which tests or cases are run; None: the order that is written."""
    busy: bool = False
    """Beside processes that keep every core busy."""
    otherwise: Conditions | None = None
    """The same by other means, for what waits until the wall clock expires, as it may by a fault of the means alone."""


USUAL = Conditions()


def _where(zone: str, language: str, hash_seed: int) -> tuple[tuple[str, str], ...]:
    return (("TZ", zone), ("LANG", language), ("LC_ALL", language), ("PYTHONHASHSEED", str(hash_seed)))


GATE = (
    Conditions("far west, C", _where("Pacific/Pago_Pago", "C", 0)),
    Conditions("half-hour zone, UTF-8, shuffled", _where("Asia/Kathmandu", "C.UTF-8", 1), order=1),
    Conditions("far east, shuffled, busy", _where("Pacific/Kiritimati", "POSIX", 4_294_967_295), order=2, busy=True),
)
"""Under these the reference is run, one after the other. No image needs a language pack for them."""


def later(days: int, library: str) -> Conditions:
    """Another machine at another time: what passed the gate must pass here too. `library` is of libfaketime, as it is
    found in the box; none: the clock stays.

    The library has a fault either way. If it also moves the clock that timers run on, a wait for a lock with a timeout
    never ends; if it does not, Python's `sleep` raises OSError. No program under test can help that: of one that waits
    until its time is over under the first, the second decides.
    """
    where = _where("Australia/Lord_Howe", "C.UTF-8", 20_240_229)
    moved = (("LD_PRELOAD", library), ("FAKETIME", f"+{days}d"), ("FAKETIME_DISABLE_SHM", "1"))
    if not library:
        return Conditions(f"{days} days later", where, order=20_240_229, busy=True)
    kept = (("DONT_FAKE_MONOTONIC", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1"))
    other = Conditions(f"{days} days later, timers as they are", (*where, *moved, *kept), order=20_240_229, busy=True)
    return replace(other, name=f"{days} days later", env=(*where, *moved), otherwise=other)


def faketime_library() -> str:
    """Where this host has libfaketime, and so a box on its base; empty where it is not installed."""
    found = (str(path) for pattern in _FAKETIME for path in sorted(Path("/").glob(pattern.lstrip("/"))))
    return next(found, "")
