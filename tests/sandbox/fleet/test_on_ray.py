"""The fleet on three ray nodes of this machine: hosts, dispatcher and clients are processes, and are really killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.contract.sandbox.support import empties, in_loop, under_way

from etude.cluster import open_cluster
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import BoxSpec, SandboxLost
from etude.sandbox.fleet import Policy, open_fleet
from etude.sandbox.fleet.remote_box import RemoteBox
from etude.sandbox.fleet.resources import Resources

# A burst of one: boxes that are made together go to different hosts.
POLICY = Policy(
    ceiling=Resources(1_000, 1_000, 1_000), host_rate=0.2, host_burst=1, lease_seconds=4.0, beat_seconds=0.3
)


@pytest.mark.slow
@in_loop
async def test_a_killed_node_and_a_killed_client(tmp_path: Path) -> None:
    cluster = await open_cluster("ray", run_folder=tmp_path, cpus=2, nodes=3)
    try:
        fleet = await open_fleet(cluster, SandboxRecipe(), tmp_path / "boxes", policy=POLICY)
        sandboxes = fleet.sandboxes()
        image = await sandboxes.add_image({"a": b"everywhere"})
        boxes = await asyncio.gather(*(sandboxes.create(BoxSpec(image)) for _ in range(3)))
        by_host = {box.host_name: box for box in boxes if isinstance(box, RemoteBox)}
        assert set(by_host) == {"fleet-node-0", "fleet-node-1", "fleet-node-2"}
        assert [await box.read_file("a") for box in boxes] == [b"everywhere"] * 3

        box = by_host["fleet-node-2"]
        (child,) = await box.fork()
        cut = await under_way(box, "sleep 987")
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        assert await empties(box)

        # A node dies: its boxes are lost, and nothing else.
        doomed = by_host["fleet-node-1"]
        running = await under_way(doomed, "sleep 60")
        living = await under_way(by_host["fleet-node-0"], "sleep 3; echo alive")
        await cluster.lose_node("node-1")
        with pytest.raises(SandboxLost, match="fleet-node-1"):
            await running
        with pytest.raises(SandboxLost):
            await doomed.read_file("a")
        assert (await living).stdout == b"alive\n"
        assert await box.read_file("a") == b"everywhere"
        assert await child.read_file("a") == b"everywhere"
        fresh = await sandboxes.create(BoxSpec(image))
        assert (await fresh.exec("true", timeout=10)).code == 0

        # A client dies: its lease runs out, and its boxes go.
        tenant = await cluster.start("tenant", "tests.sandbox.fleet.tenant:Tenant", fleet.sandboxes(), cpus=0.1)
        assert await tenant.call("take", 2, deadline=60) == "taken\n"
        assert sum((await fleet.dispatcher.call("census", deadline=60)).values()) == 6
        await tenant.kill()
        async with asyncio.timeout(60):
            while sum((await fleet.dispatcher.call("census", deadline=60)).values()) > 4:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert (await box.exec("true", timeout=10)).code == 0, "others keep theirs"
        await sandboxes.close()
        await fleet.close()
    finally:
        await cluster.close()
