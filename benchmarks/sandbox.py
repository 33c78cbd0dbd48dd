"""The lifetime of a box (create, one command, destroy), forks, and a thousand live boxes; compared with podman and
bubblewrap.

As root it measures root first, then the ordinary user nobody in a separate process, with a result line for each. Podman
is measured once, as the current user. A box has its own image, limits and files. Bubblewrap is the lower bound: all
namespaces, the host's files read-only and a tmpfs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import site
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from _report import finish
from _sandbox_peers import bwrap_p50_ms, p50_ms, per_second, podman

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import Box, BoxSpec, Limits, Sandboxes, open_sandboxes, temporary_store

RUNS, WARM = 100, 20
LIVE, AT_ONCE = 1000, 20
COMMAND = ["/bin/true"]
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
FILL = "mkdir d; i=0; while [ $i -lt 2000 ]; do head -c 52429 /dev/urandom >d/$i; i=$((i+1)); done"
KERNEL_AND_PROCESSES = ("AnonPages", "Shmem", "Slab", "KernelStack", "PageTables", "Percpu")
"""Fields of /proc/meminfo that grow with the number of boxes. Pages of program files are left out, being shared."""


async def median_ms(work: Callable[[], Awaitable[float]], runs: int = RUNS) -> float:
    """Median milliseconds of the durations, in seconds, that `work` returns."""
    taken = [await work() for _ in range(runs + WARM)]
    return 1000 * statistics.median(taken[WARM:])


async def measure(place: Path) -> dict[str, Any]:
    sandboxes = open_sandboxes(SandboxRecipe(), place)
    try:
        image = await sandboxes.add_image({"a.py": b"x = 1\n"})
        return {
            "mode": sandboxes.host.mode.value,  # type: ignore[attr-defined]
            **await lives(sandboxes, image),
            "bwrap_p50_ms": bwrap_p50_ms(),
            **await forks(sandboxes, image),
            **await many(sandboxes, image),
        }
    finally:
        await sandboxes.close()


async def lives(sandboxes: Sandboxes, image: str) -> dict[str, Any]:
    async def life() -> float:
        begun = time.perf_counter()
        box = await sandboxes.create(BoxSpec(image))
        await checked(box)
        await box.destroy()
        return time.perf_counter() - begun

    async def several() -> None:
        for _ in range(RUNS):
            await life()

    serial = await median_ms(life)
    begun = time.perf_counter()
    await asyncio.gather(*(several() for _ in range(4)))
    return {"p50_ms": serial, "per_second": 4 * RUNS / (time.perf_counter() - begun)}


async def forks(sandboxes: Sandboxes, image: str) -> dict[str, Any]:
    parent = await sandboxes.create(BoxSpec(image, limits=Limits(disk_mb=512)))
    assert (await parent.exec(FILL, timeout=120)).code == 0

    async def fork(count: int) -> float:
        """Seconds per child until every child is usable."""
        begun = time.perf_counter()
        children = await parent.fork(count)
        taken = time.perf_counter() - begun
        assert await children[-1].list_files("d") == sorted(str(n) for n in range(2000))
        await asyncio.gather(*(child.destroy() for child in children))
        return taken / count

    async def fork_after_a_write(number: int) -> float:
        await parent.write_file("written", str(number).encode())
        return await fork(1)

    one = [await fork(1) for _ in range(200)]
    many_at_once = [await fork(32) for _ in range(10)]
    await parent.start(["sleep", "3600"], timeout=3600, cwd="d")
    busy = [await fork_after_a_write(number) for number in range(100)]
    await parent.destroy()
    return {
        "fork_p50_ms": 1000 * statistics.median(one),
        "fork32_ms_each": 1000 * statistics.median(many_at_once),
        "fork_busy_p50_ms": 1000 * statistics.median(busy),
    }


async def many(sandboxes: Sandboxes, image: str) -> dict[str, Any]:
    """Measure a thousand live boxes. Memory is counted after each box has run a command."""
    before, boxes = memory_kib(), []
    for _ in range(LIVE // AT_ONCE):
        boxes += await asyncio.gather(*(sandboxes.create(BoxSpec(image)) for _ in range(AT_ONCE)))
        await asyncio.gather(*(checked(box) for box in boxes[-AT_ONCE:]))
    idle = (memory_kib() - before) / LIVE / 1024
    begun = time.perf_counter()
    await asyncio.gather(*(checked(box) for box in boxes))
    answer = time.perf_counter() - begun
    await asyncio.gather(*(box.destroy() for box in boxes))
    return {"live_boxes": len(boxes), "answer_s": answer, "idle_mib": idle}


def memory_kib() -> int:
    rows = (line.split() for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    return sum(int(row[1]) for row in rows if row[0].rstrip(":") in KERNEL_AND_PROCESSES)


async def checked(box: Box) -> None:
    done = await box.exec(COMMAND, timeout=60.0)
    assert done.code == 0, done


def measure_podman(place: Path) -> dict[str, Any]:
    with podman(place) as life:
        if life is None:
            return {"podman_p50_ms": None, "podman_per_second": None}
        return {"podman_p50_ms": p50_ms(life, 30), "podman_per_second": per_second(life, 40)}


def measure_as_nobody() -> dict[str, Any] | None:
    """Measure as nobody, in a separate process. If this interpreter lies in root's home, another one is used."""
    elsewhere = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    here = Path(__file__).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="etude-bench-"))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": ":".join([str(here.parent / "src"), str(here), *site.getsitepackages()]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        os.chown(folder, NOBODY, NOBODY)
        for python in filter(None, (sys.executable, elsewhere)):
            done = subprocess.run(
                [*AS_NOBODY, python, str(here / "sandbox.py"), str(folder / "boxes")],
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return dict(json.loads(done.stdout.splitlines()[-1]))
        print(f"an ordinary user could not run this: {done.stderr[-2000:]}")
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(ours: dict[str, Any], peer: dict[str, Any]) -> None:
    ratio = peer["podman_p50_ms"] and peer["podman_p50_ms"] / ours["p50_ms"]
    first = ("mode", "p50_ms", "per_second")
    rest = {key: value for key, value in ours.items() if key not in first}
    finish("sandbox", {**{key: ours[key] for key in first}, **peer, "ratio_podman": ratio, **rest})


def main() -> None:
    if len(sys.argv) > 1:  # The part that measure_as_nobody starts.
        print(json.dumps(asyncio.run(measure(Path(sys.argv[1])))))
        return
    with temporary_store("etude-bench-") as place:
        peer = measure_podman(place)
        report(asyncio.run(measure(place / "boxes")), peer)
    if os.geteuid() == 0 and (ours := measure_as_nobody()):
        report(ours, peer)


if __name__ == "__main__":
    main()
