"""One campaign: runs a target's worker in a child process, and keeps the inputs that broke it."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import select
import signal
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.target import Target
from tests.fuzz.temporary import place_for_files
from tests.fuzz.worker import Break, Progress, Worker, name_of

from etude.sandbox.inside import kernel

SEEDS = Path(__file__).parent / "seeds"
_NOTE = struct.Struct("=QQ")
_OWN_FAULT = 70
"""Exit code of a child in which the fuzzer, not the target, has raised an exception."""
_STUCK_SECONDS = 60.0
"""A child that finishes no input for so long waits for something, since CPU time is limited apart from that."""


class _Note:
    """The input that the child is working on, in memory that it shares with its parent."""

    def __init__(self, largest: int) -> None:
        self._memory = mmap.mmap(-1, _NOTE.size + largest)
        self._count = 0

    def write(self, data: bytes) -> None:
        self._count += 1
        self._memory[_NOTE.size : _NOTE.size + len(data)] = data
        self._memory[: _NOTE.size] = _NOTE.pack(self._count, len(data))

    def read(self) -> tuple[int, bytes]:
        count, size = _NOTE.unpack(self._memory[: _NOTE.size])
        return count, self._memory[_NOTE.size : _NOTE.size + size]


class _Child:
    """The supervisor, as the worker sees it."""

    def __init__(self, note: _Note, pipe: int) -> None:
        self.note = note.write
        self._pipe = pipe

    def report(self, progress: Progress) -> None:
        data = pickle.dumps(progress)
        message = memoryview(len(data).to_bytes(8, "big") + data)
        while message:
            message = message[os.write(self._pipe, message) :]


def run_campaign(
    target: Target,
    seconds: float,
    seed: int,
    *,
    found: Path | None = None,
    seeds: Path = SEEDS,
    say: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Fuzz a target for so many seconds. `found` is a folder of inputs that reached something new in earlier campaigns,
    to be continued. `say` is told about the progress once a second. Inputs that break the target are returned; keep
    them with `keep_breaks`."""
    deadline = time.monotonic() + seconds
    total = Progress()
    known = seeds_of(target, seeds)
    if found is not None:
        found.mkdir(parents=True, exist_ok=True)
        known += [path.read_bytes() for path in sorted(found.iterdir())]
    known = [data for data in dict.fromkeys(known) if len(data) <= target.largest]
    deaths = 0
    while True:
        with place_for_files():
            progress, death = _run_child(target, known, deadline, seed + deaths, found, say)
        total.inputs += progress.inputs
        total.steps = max(total.steps, progress.steps)
        total.outcomes.update(progress.outcomes)
        total.worst_seconds = max(total.worst_seconds, progress.worst_seconds)
        total.worst_bytes = max(total.worst_bytes, progress.worst_bytes)
        total.breaks += progress.breaks
        if death is None:
            return total
        total.breaks.append(death)
        known = [data for data in known if data != death.data]
        deaths += 1
        if deaths > 3 or time.monotonic() > deadline:
            return total


def seeds_of(target: Target, seeds: Path = SEEDS) -> list[bytes]:
    folder = seeds / target.name
    kept = [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []
    return [*kept, *target.examples()]


def keep_breaks(target: Target, progress: Progress, seeds: Path = SEEDS) -> list[Path]:
    """Write the inputs that broke the target to its seeds. Return their paths, in the order of the breaks."""
    paths = []
    for broken in progress.breaks:
        (seeds / target.name).mkdir(parents=True, exist_ok=True)
        paths.append(seeds / target.name / f"{broken.kind}-{name_of(broken.data)}")
        paths[-1].write_bytes(broken.data)
    return paths


def _run_child(
    target: Target, known: list[bytes], deadline: float, seed: int, found: Path | None, say: Callable[[Progress], None]
) -> tuple[Progress, Break | None]:
    """Run a worker in a child process until `deadline`. Return its last report, and the input that killed it, if any
    did."""
    note = _Note(target.largest)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work(target, known, deadline, seed, found, _Child(note, writing), reading)
    os.close(writing)
    try:
        progress, stuck = _follow(reading, pid, note, say)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == _OWN_FAULT:
        raise RuntimeError(f"the fuzzer itself failed at {target.name}; its child process has said why")
    if code == 0 and not stuck:
        return progress, None
    count, data = note.read()
    how = "finished no input for a minute" if stuck else f"ended with {_end(code)}"
    return progress, Break("death", f"the process {how} at its input {count}", data)


def _work(
    target: Target, known: list[bytes], deadline: float, seed: int, found: Path | None, child: _Child, reading: int
) -> None:
    """In the child process. Never returns."""
    code = 1
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        faulthandler.disable()
        os.close(reading)
        os.setpgid(0, 0)

        def keep(data: bytes) -> None:
            if found is not None:
                (found / name_of(data)).write_bytes(data)

        Worker(target, seed, child).run(known, deadline, keep)
        code = 0
    except BaseException:  # noqa: BLE001  # The parent's code must not go on in this process.
        traceback.print_exc()
        code = _OWN_FAULT
    finally:
        os._exit(code)


def _follow(reading: int, pid: int, note: _Note, say: Callable[[Progress], None]) -> tuple[Progress, bool]:
    """Read the child's reports until it ends. Return the last one, and whether the child got stuck."""
    progress, buffer = Progress(), bytearray()
    count, seen = 0, time.monotonic()
    while True:
        if select.select([reading], [], [], 1.0)[0]:
            data = os.read(reading, 1 << 16)
            if not data:
                return progress, False
            buffer += data
            while len(buffer) >= 8 and len(buffer) >= 8 + int.from_bytes(buffer[:8], "big"):
                end = 8 + int.from_bytes(buffer[:8], "big")
                progress = pickle.loads(bytes(buffer[8:end]))
                del buffer[:end]
                say(progress)
        if note.read()[0] != count:
            count, seen = note.read()[0], time.monotonic()
        elif time.monotonic() - seen > _STUCK_SECONDS:
            return progress, True


def _end(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return {-signal.SIGVTALRM: "too much CPU time in one step"}.get(code, signal.Signals(-code).name)
