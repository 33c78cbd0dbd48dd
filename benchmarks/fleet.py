"""The fleet's scheduler on 500 simulated hosts with 100,000 boxes, and real boxes created through it on four ray nodes.

- `placements_per_second`: per second of the scheduler's own CPU time.
- `packing`: the least number of hosts that could hold the boxes, divided by the number that do.
- `p99_wait_ms`: in simulated time; creating a box takes 20 ms of it on average.
- `real_creates_per_second`: wall clock of creating and destroying real boxes through dispatcher and hosts, which all
  run on this machine.
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
# All four hosts report the load of this one machine, which the benchmark fills on purpose, so the ceiling is lifted. A
# burst of one spreads the boxes over the hosts.
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
    scene = Scene(boxes=102_000)  # an average; after deaths and drains there are still above 100,000 at the peak
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
