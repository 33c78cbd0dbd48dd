"""Runs the inputs of one campaign, in a child process that any of them may kill."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.fuzz.bounds import Bounds, TooSlow, Usage
from tests.fuzz.inputs import Inputs
from tests.fuzz.reached_lines import ReachedLines
from tests.fuzz.target import Target

_TRACED = 8.0
"""How much longer an input may take while the lines that it reaches are collected. Then it is run once more without."""
_SHRINKING_SECONDS = 3.0
_MOST_BREAKS = 20
_TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Break:
    """An input that a target does not withstand."""

    kind: str
    """"exception", "time", "memory" or "death" (of the process)."""
    what: str
    data: bytes


@dataclass(slots=True)
class Progress:
    inputs: int = 0
    steps: int = 0
    """Steps from line to line of the watched modules that were reached."""
    outcomes: Counter[str] = field(default_factory=Counter)
    worst_seconds: float = 0.0
    """CPU time of the slowest input that was measured. Others took less than twice as long."""
    worst_bytes: int = 0
    breaks: list[Break] = field(default_factory=list)


class Supervisor(Protocol):
    """The process that started this one. It survives whatever an input does."""

    def note(self, data: bytes) -> None:
        """Called before each input."""
        ...

    def report(self, progress: Progress) -> None: ...


class Worker:
    def __init__(self, target: Target, seed: int, supervisor: Supervisor) -> None:
        self.target, self.supervisor = target, supervisor
        self.progress = Progress()
        self._inputs = Inputs(target.inputs, target.largest, seed)
        self._lines = ReachedLines(target.watches)
        self._bounds = Bounds(target.seconds, target.megabytes)
        self._known: set[str] = set()
        self._found: Callable[[bytes], None] = lambda _: None

    def run(self, seeds: Sequence[bytes], deadline: float, found: Callable[[bytes], None]) -> None:
        """Run the seeds, and then new inputs until the monotonic time `deadline`; one input at least. `found` gets each
        of the new ones that reached something new."""
        for data in seeds:
            self._attempt(data)
        self._found = found
        reported = time.monotonic()
        while (time.monotonic() < deadline or not self.progress.inputs) and len(self.progress.breaks) < _MOST_BREAKS:
            self._attempt(self._inputs.next())
            if time.monotonic() - reported > 1:
                self.supervisor.report(self.progress)
                reported = time.monotonic()
        self.supervisor.report(self.progress)

    def _attempt(self, data: bytes) -> None:
        progress, before = self.progress, len(self._lines)
        self.supervisor.note(data)
        with self._lines.collect():
            broken, outcome, usage = self._once(data, _TRACED)
        slow = broken is not None and broken[0] != "exception"
        # Collecting the lines takes time too, and what the allocator keeps may belong to earlier inputs.
        if slow or usage.seconds > 2 * progress.worst_seconds or usage.bytes > self.target.megabytes << 20:
            self._bounds.release_free_memory()
            again, outcome, usage = self._once(data, 1.0)
            broken = again or (None if slow else broken)
            progress.worst_seconds = max(progress.worst_seconds, usage.seconds)
        progress.inputs += 1
        progress.worst_bytes = max(progress.worst_bytes, usage.bytes)
        progress.steps = len(self._lines)
        if broken is None and usage.bytes > self.target.megabytes << 20:
            broken = "memory", f"{usage.bytes >> 20} MiB; at most {self.target.megabytes} are allowed"
        if broken is not None:
            self._record(*broken, data)
            return
        progress.outcomes[outcome] += 1
        if len(self._lines) > before or progress.outcomes[outcome] == 1:
            self._inputs.keep(data)
            self._found(data)

    def _once(self, data: bytes, factor: float) -> tuple[tuple[str, str] | None, str, Usage]:
        """Run an input. Return (kind and text of the break if there is one, outcome, what it took)."""
        broken, outcome = None, ""
        usage = Usage()
        try:
            with self._bounds.of_one_input(factor) as usage:
                outcome = self.target.run(data)
        except TooSlow:
            broken = "time", f"more than {self.target.seconds} s of CPU time"
        except MemoryError:
            broken = "memory", f"the process's limit; at most {self.target.megabytes} MiB are allowed"
        except Exception as error:  # noqa: BLE001  # Whatever leaves a target is what is looked for.
            broken = "exception", _described(error)
        return broken, outcome, usage

    def _record(self, kind: str, what: str, data: bytes) -> None:
        if kind == "exception":
            if what in self._known:
                return
            self._known.add(what)
            data = self._shrunk(data, what)
        elif kind in self._known:
            return  # One input that is too slow or too large is enough to look for the cause.
        self._known.add(kind if kind != "exception" else what)
        self.progress.breaks.append(Break(kind, what, data))
        self.supervisor.report(self.progress)

    def _shrunk(self, data: bytes, what: str) -> bytes:
        """Leave out pieces of the input as long as it breaks the target in the same way."""
        deadline = time.monotonic() + _SHRINKING_SECONDS
        size = max(1, len(data) // 2)
        while size and time.monotonic() < deadline:
            at = 0
            while at < len(data) and time.monotonic() < deadline:
                shorter = data[:at] + data[at + size :]
                self.supervisor.note(shorter)
                broken, _, _ = self._once(shorter, 1.0)
                if broken == ("exception", what):
                    data = shorter
                else:
                    at += size
            size //= 2
        return data


def _described(error: BaseException) -> str:
    """Return the exception's type and the last line of the project's own source in which it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/etude/" in frame.filename or Path(frame.filename).is_relative_to(_TESTS)]
    last = own[-1] if own else frames[-1]
    text = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno} ({last.name})"
    return text if not isinstance(error, AssertionError) else f"{text}: {str(error)[:200]}"


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
