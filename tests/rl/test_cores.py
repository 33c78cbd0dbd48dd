"""Who used the cores: from /proc into the journal, for every process that RL started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etude.cluster import ServiceDied
from etude.engine.protocol import EngineError, EngineStats
from etude.journal import Journal, read_journal
from etude.rl import Crew, read_cores
from etude.rl.cores import CoreMeter, Reading

TICKS = os.sysconf("SC_CLK_TCK")


def write_proc(proc: Path, processes: Mapping[int, tuple[int, int, int]]) -> None:
    """Parent, own seconds, seconds of ended children, by pid."""
    for pid, (parent, own, children) in processes.items():
        (proc / str(pid)).mkdir(parents=True)
        times = f"{own * TICKS} 0 {children * TICKS} 0"
        (proc / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0 -1 0 0 0 0 0 {times} 20 0 1 0 99")


def write_cpus(proc: Path) -> int:
    """Of each CPU 30 busy seconds, 5 of them stolen, and 70 idle ones; one CPU more than this process may use."""
    mine = sorted(os.sched_getaffinity(0))
    counters = [seconds * TICKS for seconds in (10, 1, 9, 60, 10, 2, 3, 5, 10, 1)]
    lines = [f"cpu{number} {' '.join(map(str, counters))}" for number in (*mine, max(mine) + 1)]
    (proc / "stat").write_text("\n".join([f"cpu  {' '.join(map(str, counters))}", *lines, "intr 5 6", ""]))
    return len(mine)


def test_a_service_counts_with_all_that_it_started(tmp_path) -> None:
    own = os.getpid()
    write_proc(
        tmp_path,
        {
            1: (0, 1000, 1000),
            own: (1, 1, 2),
            own + 1: (own, 4, 0),  # ray
            own + 2: (own + 1, 8, 16),  # a worker
            own + 3: (own + 2, 32, 0),  # its box
            own + 4: (own + 3, 64, 0),
            own + 5: (own + 1, 128, 0),  # the engine
            own + 6: (1, 256, 0),  # somebody else's
        },
    )
    cores = write_cpus(tmp_path)
    reading = read_cores({"worker-0": own + 2, "engine": own + 5, "elsewhere": own + 99}, tmp_path)
    assert reading is not None
    assert reading.used == {"driver": 7.0, "worker-0": 120.0, "engine": 128.0, "elsewhere": 0.0}
    assert (reading.cores, reading.busy) == (cores, pytest.approx(30.0 * cores))


def test_services_inside_this_process_are_the_driver(tmp_path) -> None:
    write_proc(tmp_path, {os.getpid(): (1, 3, 0)})
    write_cpus(tmp_path)
    reading = read_cores({"engine": os.getpid()}, tmp_path)
    assert reading is not None
    assert reading.used == {"driver": 3.0}


@pytest.mark.parametrize("stat", [None, "", "cpu 1 2\n", "cpu0 a b c\n"])
def test_a_system_that_does_not_tell_is_no_error(stat, tmp_path) -> None:
    if stat is not None:
        (tmp_path / "stat").write_text(stat)
    assert read_cores({}, tmp_path) is None


def test_what_a_real_process_and_its_child_compute_is_seen() -> None:
    burn = "import time\nwhile time.process_time() < .3: pass\n"
    first = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
    code = f"{first}{burn}print('x', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        before = read_cores({})
        assert process.stdout is not None
        process.stdout.readline()
        after = read_cores({"worker-0": process.pid})
        assert before is not None
        assert after is not None
        assert after.used["worker-0"] >= 0.55
        # Its start, and what ticks round off, may lie before the first look.
        assert after.busy - before.busy >= after.used["worker-0"] - 0.2
        process.communicate(b"\n")


SERVICES = ("trainer", "worker-0")


class Script:
    """A crew whose services use what is written down."""

    def __init__(self, readings: list[Reading | None], idle: list[float | Exception]) -> None:
        self.readings, self.idle = readings, idle
        self.asked: list[dict[str, int]] = []
        services = {name: SimpleNamespace(name=name, local_pid=pid) for pid, name in enumerate(SERVICES, 7)}
        engine = SimpleNamespace(name="engine", local_pid=None, remote=self)
        self.crew = cast(
            Crew,
            SimpleNamespace(trainer=services["trainer"], engine=engine, workers=[services["worker-0"]], evaluator=None),
        )

    def read(self, services: Mapping[str, int]) -> Reading | None:
        self.asked.append(dict(services))
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    async def call(self, method: str, *, deadline: float) -> EngineStats:
        said = self.idle.pop(0) if self.idle else ServiceDied("engine is gone")
        if isinstance(said, Exception):
            raise said
        return EngineStats(seconds_idle=said)


def watched(script: Script, folder: Path, rows: int) -> list[dict[str, Any]]:
    journal = Journal(folder, "driver")

    async def main() -> None:
        watching = asyncio.create_task(CoreMeter(script.crew, journal, script.read).watch(every=0.0))
        async with asyncio.timeout(10):
            while len(list(read_journal(folder))) < rows and not watching.done():  # noqa: ASYNC110 - it knows nobody
                await asyncio.sleep(0.001)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching

    asyncio.run(main())
    journal.close()
    return [entry.fields for entry in read_journal(folder, kind="cores")]


def test_each_row_tells_what_was_used_since_the_one_before(tmp_path) -> None:
    readings = [
        Reading(100.0, 2, 50.0, {"driver": 1.0, "trainer": 3.0, "worker-0": 9.0}),
        Reading(101.0, 2, 51.5, {"driver": 1.25, "trainer": 3.5, "worker-0": 9.5}),
        Reading(103.0, 2, 55.0, {"driver": 1.5, "trainer": 3.5, "worker-0": 0.5}),  # it died, and was started again
        Reading(104.0, 2, 55.5, {"driver": 1.5, "trainer": 3.5, "worker-0": 0.75}),
    ]
    script = Script(readings, [30.0, 30.5, EngineError("the decode loop failed")])
    rows = watched(script, tmp_path, 3)
    assert rows == [
        {"seconds": seconds, "cores": 2, "busy": busy, "used": used, "engine_waited": waited}
        for seconds, busy, used, waited in (
            (1.0, 1.5, {"driver": 0.25, "trainer": 0.5, "worker-0": 0.5}, 0.0),  # since it started is not since then
            (2.0, 3.5, {"driver": 0.25, "trainer": 0.0, "worker-0": 0.0}, 0.5),
            (1.0, 0.5, {"driver": 0.0, "trainer": 0.0, "worker-0": 0.25}, 0.0),
        )
    ]
    assert script.asked[0] == {"trainer": 7, "worker-0": 8}, "an engine of which no start was told counts as the driver"


def test_where_the_system_does_not_tell_nothing_is_written(tmp_path) -> None:
    assert watched(Script([None], []), tmp_path, 1) == []
