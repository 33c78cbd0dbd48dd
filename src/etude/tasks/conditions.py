"""Conditions that must not change a verdict: time zone, language, hash seed, test order, the clock, a busy machine.

A grading that yields a score runs under the usual conditions. The gate also runs a task's reference under other
conditions, before anybody trains on the task. It thus finds suites that pass only in one time zone, in one order or at
one time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

_FAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Circumstances of a grading that a correct verdict does not depend on."""

    name: str = "usual"
    env: tuple[tuple[str, str], ...] = ()
    """Variables of every command in the grading's boxes. They override the image's own, but not a verifier's."""
    order: int | None = None
    """Seed for shuffling the tests or cases; None keeps their written order."""
    busy: bool = False
    """Whether the grading runs beside processes that keep every core busy."""
    fallback: Conditions | None = None
    """Equivalent conditions that are set up in another way. The gate repeats a run under the fallback if the run
    reaches its wall-clock limit, because the way in which conditions are set up can itself make a run hang (see
    `days_later`)."""


USUAL = Conditions()


def _locale_variables(zone: str, language: str, hash_seed: int) -> tuple[tuple[str, str], ...]:
    return (("TZ", zone), ("LANG", language), ("LC_ALL", language), ("PYTHONHASHSEED", str(hash_seed)))


GATE = (
    Conditions("far west, C", _locale_variables("Pacific/Pago_Pago", "C", 0)),
    Conditions("half-hour zone, UTF-8, shuffled", _locale_variables("Asia/Kathmandu", "C.UTF-8", 1), order=1),
    Conditions(
        "far east, shuffled, busy", _locale_variables("Pacific/Kiritimati", "POSIX", 4_294_967_295), order=2, busy=True
    ),
)
"""The conditions under which the gate, which admits tasks, runs a task's reference solution: one after another, then
from the first again. None needs a language pack in the image."""


def days_later(days: int, library: str) -> Conditions:
    """Return conditions that imitate another machine, on which it is `days` later. The reference solution of a task
    that passed the gate must still pass under them. `library` is the path of libfaketime in the box; if it is empty,
    programs see the real date.

    libfaketime has two modes, each with a fault that a program under test cannot avoid. If it also moves the monotonic
    clock, which timers use, waiting for a lock with a timeout never ends. If it leaves that clock alone, Python's
    `sleep` raises OSError. So the conditions use the first mode, and their `fallback` uses the second.
    """
    where = _locale_variables("Australia/Lord_Howe", "C.UTF-8", 20_240_229)
    moved = (("LD_PRELOAD", library), ("FAKETIME", f"+{days}d"), ("FAKETIME_DISABLE_SHM", "1"))
    if not library:
        return Conditions(f"{days} days later", where, order=20_240_229, busy=True)
    kept = (("DONT_FAKE_MONOTONIC", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1"))
    other = Conditions(f"{days} days later, timers as they are", (*where, *moved, *kept), order=20_240_229, busy=True)
    return replace(other, name=f"{days} days later", env=(*where, *moved), fallback=other)


def faketime_library() -> str:
    """Return libfaketime's path on this host, or "". Boxes that show the host's system folders have it at the same
    path."""
    found = (str(path) for pattern in _FAKETIME for path in sorted(Path("/").glob(pattern.lstrip("/"))))
    return next(found, "")
