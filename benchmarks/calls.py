"""Services of one machine, as our cluster runs them and as ray does: a call, and the start of a cluster.

A call's arguments have the size of one turn. Reported are CPU milliseconds of caller and service together, and calls
per second. A start is a cluster with eight services that import torch, as a run has.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from _report import finish

from etude.cluster import open_cluster
from etude.cluster.ray_backend import RayCluster, RayRemote

AT_ONCE, CALLS, SERVICES = 32, 1920, 8


class Echo:
    def __init__(self) -> None:
        self.ones = torch.ones(3)

    async def echo(self, value: Any) -> Any:
        return value


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        starts = asyncio.run(_starts(Path(folder)))
        finish("calls", asyncio.run(_measure(Path(folder))) | starts)


async def _starts(folder: Path) -> dict[str, Any]:
    """Return the seconds that each backend needs for a cluster and its services."""
    seconds: dict[str, float] = {}
    for backend in ("processes", "ray"):
        begun = time.monotonic()
        cluster = await open_cluster(backend, run_folder=folder, cpus=2)
        for number in range(SERVICES):
            await cluster.start(f"{backend}-{number}", "calls:Echo", cpus=0.1, deadline=120)
        seconds[backend] = time.monotonic() - begun
        await cluster.close()
    processes, ray = seconds["processes"], seconds["ray"]
    return {"processes_start_s": processes, "ray_start_s": ray, "start_ratio": ray / processes}


async def _measure(folder: Path) -> dict[str, Any]:
    cluster = RayCluster.open(folder, cpus=2)
    try:
        echo = await cluster.start("echo", "calls:Echo", cpus=0.1)
        turn = {"prompt": np.zeros(200, np.int32), "experts": np.zeros((100, 3, 2), np.uint16)}

        async def direct() -> None:
            await echo.call("echo", turn, deadline=60)

        async def ray() -> None:
            await echo._find_actor("echo").call.remote("echo", (turn,), {})

        direct_ms, direct_rate = await _cost(direct, echo)
        ray_ms, ray_rate = await _cost(ray, echo)
    finally:
        await cluster.close()
    return {
        "direct_cpu_ms": direct_ms,
        "ray_cpu_ms": ray_ms,
        "cpu_ratio": ray_ms / direct_ms,
        "direct_per_second": direct_rate,
        "ray_per_second": ray_rate,
    }


async def _cost(call: Callable[[], Awaitable[None]], service: RayRemote) -> tuple[float, float]:
    """Return CPU milliseconds per call, and calls per second."""
    pid = (await service.health()).pid
    ends = [psutil.Process(), psutil.Process(pid)]

    async def some(calls: int) -> None:
        for _ in range(calls):
            await call()

    async def all_at_once(calls: int) -> None:
        await asyncio.gather(*(some(calls // AT_ONCE) for _ in range(AT_ONCE)))

    await all_at_once(CALLS // 4)  # warm
    spent, begun = _spent(ends), time.monotonic()
    await all_at_once(CALLS)
    return (_spent(ends) - spent) / CALLS * 1e3, CALLS / (time.monotonic() - begun)


def _spent(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


if __name__ == "__main__":
    main()
