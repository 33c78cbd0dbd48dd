"""Gradings per minute and the cost of sealing: the grader compared with running the same tests in a plain subprocess.

The peer is the least a grader must do: copy the task's files and hidden tests into a new folder, run the tests there as
the current user, and trust the exit code. `overhead` is measured with a test suite that takes one second;
`quick_overhead_ms`, with a suite that takes no time, is the fixed cost of one grading. On a busy machine the wall clock
misleads, since each box has its own CPU share, so `overhead_cpu` compares the CPU time of all processes involved. At
the end a thousand gradings run, and `left` counts what they leave behind.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from _report import finish

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import Sandboxes, open_sandboxes
from etude.tasks import Grader, Split, Task, make_tasks, open_source, read_task, reference_diff, write_task
from etude.tasks.verifiers.tests import suite_files

RUNS = int(os.environ.get("RUNS", "15"))
MANY = int(os.environ.get("MANY", "1000"))
PYTHON = "/usr/bin/python3"
BEFORE = (
    "def total(prices, discount):\n    return sum(prices) + discount\n\n\ndef most(prices):\n    return max(prices)\n"
)
AFTER = BEFORE.replace("+ discount", "- discount")
DIFF = """--- a/prices.py
+++ b/prices.py
@@ -1,2 +1,2 @@
 def total(prices, discount):
-    return sum(prices) + discount
+    return sum(prices) - discount
"""
SUITE = """import time
import unittest

import prices


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


class TotalTest(unittest.TestCase):
"""
TEST = """    def test_of_{number}(self):
        work({seconds})
        self.assertEqual({call}, {wanted})

"""


def suite_task(folder: Path, seconds: float) -> Task:
    """Write a task with ten hidden tests that compute for `seconds` in total, the last ten times as long as the first.

    Three of the tests cover the change that the task asks for."""
    parts, ids = [], [f"test_prices.TotalTest.test_of_{number}" for number in range(10)]
    for number in range(10):
        prices, discount = [37 * number + 211, 1709], 17 * number + 5  # Sums that nobody guesses.
        call, wanted = "prices.most([3, 9])", 9
        if number % 4 == 1:
            call, wanted = f"prices.total({prices}, {discount})", sum(prices) - discount
        parts.append(TEST.format(number=number, seconds=seconds * (number + 1) / 55, call=call, wanted=wanted))
    task = Task(folder.name, "mend the total", "debugging", Split.TRAIN, folder.name, "op", folder)
    task.verifier = {"type": "tests", "runner": "unittest", "python": PYTHON}
    suite = {"test_prices.py": (SUITE + "".join(parts)).encode()}
    files = suite_files(suite, ids[1::4], [name for name in ids if name not in ids[1::4]])
    write_task(task, {**files, "environment/repo/prices.py": BEFORE.encode(), "solution/patch.diff": DIFF.encode()})
    return read_task(folder, {Split.TRAIN})


@dataclass(slots=True)
class Times:
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def plain(task: Task) -> tuple[float, float]:
    """Run the peer (copy the files, apply the change, run the tests); return wall-clock and CPU seconds."""
    begun, used = time.perf_counter(), _cpu()
    with tempfile.TemporaryDirectory(prefix="etude-plain-") as place:
        copy = Path(place) / "work"
        shutil.copytree(task.directory / "environment/repo", copy)
        shutil.copytree(task.directory / "tests/files", copy, dirs_exist_ok=True)
        (copy / "prices.py").write_text(AFTER)
        command = [PYTHON, "-m", "unittest", "-q", "test_prices"]
        subprocess.run(command, cwd=copy, check=True, capture_output=True)
    return time.perf_counter() - begun, _cpu() - used


def _cpu() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    return sum(os.times()[:4])


async def compare(grader: Grader, task: Task) -> tuple[Times, Times]:
    """Time gradings and plain runs alternately."""
    ours, peer = Times(), Times()
    for run in range(RUNS + 1):
        begun, used = time.perf_counter(), _cpu()
        verdict = await grader.grade(task, DIFF, fresh=True)
        taken, used = time.perf_counter() - begun, _cpu() - used
        assert verdict.passed, verdict
        assert verdict.evidence.sealed or os.geteuid(), verdict
        bare, bare_cpu = plain(task)
        if run:  # The first run is a warm-up: it also proves the pool that exams are drawn from.
            ours.seconds.append(taken)
            ours.cpu.append(used + verdict.evidence.cpu_seconds)
            peer.seconds.append(bare)
            peer.cpu.append(bare_cpu)
    return ours, peer


async def per_minute(grader: Grader, tasks: list[Task], count: int, at_once: int = 2) -> float:
    turn = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        task = tasks[number % len(tasks)]
        async with turn:
            verdict = await grader.grade(task, reference_diff(task), fresh=True)
        assert verdict.passed, verdict

    begun = time.perf_counter()
    await asyncio.gather(*map(one, range(count)))
    return 60 * count / (time.perf_counter() - begun)


def traces_of(store: Path) -> dict[str, int]:
    """Count what gradings could leave behind on the machine, in the store and in this process."""
    own = psutil.Process()
    cgroups = Path("/sys/fs/cgroup")
    return {
        "processes": len(own.children(recursive=True)),
        "mounts": len(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()),
        "cgroups": sum(1 for path in cgroups.rglob(f"etude-{own.pid}-*") if path.is_dir()),
        "files": sum(1 for _ in store.rglob("*")),
        "descriptors": own.num_fds(),
        "memory_mib": own.memory_info().rss >> 20,
    }


async def measure(sandboxes: Sandboxes, place: Path) -> dict[str, Any]:
    grader = Grader(sandboxes)
    second, quick = suite_task(place / "second", 1.0), suite_task(place / "quick", 0.0)
    ours, peer = await compare(grader, second)
    sealed, bare = statistics.median(ours.seconds), statistics.median(peer.seconds)
    quick_ours, quick_peer = await compare(grader, quick)
    cases = make_tasks(open_source("microrepo"), Split.TRAIN, 20, 1, place / "tasks")
    rate = await per_minute(grader, cases, 100)
    before = traces_of(place / "boxes")
    rate = max(rate, await per_minute(grader, cases, MANY))
    left = {name: count - before[name] for name, count in traces_of(place / "boxes").items()}
    return {
        "per_minute": await per_minute(grader, [second], 20),
        "plain_per_minute": 60 / bare * min(2, len(os.sched_getaffinity(0))),
        "overhead": sealed / bare - 1,
        "overhead_cpu": statistics.median(ours.cpu) / statistics.median(peer.cpu) - 1,
        "sealed_s": sealed,
        "plain_s": bare,
        "quick_overhead_ms": 1000 * (statistics.median(quick_ours.seconds) - statistics.median(quick_peer.seconds)),
        "cases_per_minute": rate,
        "gradings": MANY,
        "left": left,
    }


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="etude-grading-") as folder:
        place = Path(folder)
        sandboxes = open_sandboxes(SandboxRecipe(), place / "boxes")

        async def run() -> dict[str, Any]:
            try:
                return await measure(sandboxes, place)
            finally:
                await sandboxes.close()

        result = asyncio.run(run())
    finish("grading", result)


if __name__ == "__main__":
    sys.exit(main())
