"""Conditions that must not change a verdict: time zone, language, hash seed, test order, the clock, a busy machine.

A grading for a score runs under the usual conditions. The gate runs a task's reference under others, so that a suite
that passes only in one place, at one time or in one order is found before anybody trains on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

_FAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")


@dataclass(frozen=True, slots=True)
class Conditions:
    name: str = "usual"
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of every command in the grading's boxes. They override the image's own, but not those that
    a verifier sets."""
    order: int | None = None
    """Seed to shuffle the tests or cases with; None keeps them in written order."""
    busy: bool = False
    """Whether to run beside processes that keep every core busy."""
    otherwise: Conditions | None = None
    """The same conditions by other means. Used when a run waited until the wall clock expired, because the means alone
    can cause that."""


USUAL = Conditions()


def _where(zone: str, language: str, hash_seed: int) -> tuple[tuple[str, str], ...]:
    return (("TZ", zone), ("LANG", language), ("LC_ALL", language), ("PYTHONHASHSEED", str(hash_seed)))


GATE = (
    Conditions("far west, C", _where("Pacific/Pago_Pago", "C", 0)),
    Conditions("half-hour zone, UTF-8, shuffled", _where("Asia/Kathmandu", "C.UTF-8", 1), order=1),
    Conditions("far east, shuffled, busy", _where("Pacific/Kiritimati", "POSIX", 4_294_967_295), order=2, busy=True),
)
"""The conditions that the gate runs a reference under, one after the other. None of them needs a language pack in the
image."""


def later(days: int, library: str) -> Conditions:
    """Conditions of another machine at a later time, under which a gated task must still pass. `library` is the path
    of libfaketime in the box; if it is empty, the clock is not moved.

    libfaketime has a fault in either mode. If it also moves the clock that timers use, waiting for a lock with a
    timeout never ends; if it does not, Python's `sleep` raises OSError. A program under test cannot avoid either. So
    the first mode is tried, and a run that times out under it is decided by the second.
    """
    where = _where("Australia/Lord_Howe", "C.UTF-8", 20_240_229)
    moved = (("LD_PRELOAD", library), ("FAKETIME", f"+{days}d"), ("FAKETIME_DISABLE_SHM", "1"))
    if not library:
        return Conditions(f"{days} days later", where, order=20_240_229, busy=True)
    kept = (("DONT_FAKE_MONOTONIC", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1"))
    other = Conditions(f"{days} days later, timers as they are", (*where, *moved, *kept), order=20_240_229, busy=True)
    return replace(other, name=f"{days} days later", env=(*where, *moved), otherwise=other)


def faketime_library() -> str:
    """The path of libfaketime on this host, and so in a box on the host's base; empty where it is not installed."""
    found = (str(path) for pattern in _FAKETIME for path in sorted(Path("/").glob(pattern.lstrip("/"))))
    return next(found, "")
