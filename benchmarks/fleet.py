"""The fleet's scheduler over 500 simulated hosts with 100,000 boxes, and real boxes through it over four ray nodes.

`placements_per_second` is by the scheduler's own CPU time; `packing` is the least number of hosts that could hold
the boxes over the number that do; `p99_wait_ms` is simulated time, 20 ms of it the box's making on average. The last is
the wall clock of creations through dispatcher and hosts, all on this one machine, destruction included.
"""

from __future__ import annotations

import asyncio
import time

from _fleet_simulation import Scene, Simulation
from _report import finish

from etude.cluster import open_cluster
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import BoxSpec, temporary_store
from etude.sandbox.fleet import Policy, open_fleet
from etude.sandbox.fleet.resources import Resources

HOSTS, BOXES, TOGETHER = 4, 400, 16
# Four hosts report the load of one machine, which this benchmark fills on purpose; a burst of one spreads the boxes.
POLICY = Policy(ceiling=Resources(1_000, 1_000, 1_000), host_rate=100, host_burst=1)


async def real_creates_per_second() -> float:
    with temporary_store("etude-bench-") as place:
        cluster = await open_cluster("ray", run_folder=place, cpus=2, nodes=HOSTS)
        try:
            fleet = await open_fleet(cluster, SandboxRecipe(), place, policy=POLICY)
            sandboxes = fleet.sandboxes()
            image = await sandboxes.add_image({"a.py": b"x = 1\n"})
            used: set[str] = set()

            async def lives(count: int) -> None:
                for _ in range(count):
                    box = await sandboxes.create(BoxSpec(image))
                    used.add(box.host_name)  # type: ignore[attr-defined]
                    await box.destroy()

            await asyncio.gather(*(lives(4) for _ in range(TOGETHER)))
            begun = time.perf_counter()
            await asyncio.gather(*(lives(BOXES // TOGETHER) for _ in range(TOGETHER)))
            seconds = time.perf_counter() - begun
            assert len(used) == HOSTS, f"only {used} were given boxes"
            await sandboxes.close()
            await fleet.close()
        finally:
            await cluster.close()
    return BOXES / seconds


async def main() -> None:
    scene = Scene(boxes=102_000)  # on average; at its fullest, after deaths and drains, above 100,000
    outcome = Simulation(scene, Policy()).run()
    print(f"simulated: {outcome}")
    result = {
        "boxes": outcome.boxes,
        "hosts": outcome.hosts,
        "placements_per_second": outcome.placements_per_second,
        "packing": outcome.packing,
        "p99_wait_ms": outcome.p99_wait_ms,
        "real_creates_per_second": await real_creates_per_second(),
    }
    finish("fleet", result)


if __name__ == "__main__":
    asyncio.run(main())
