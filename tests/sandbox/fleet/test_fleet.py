"""A fleet of services, in one process: leases, drains, images on several hosts, what a lost host takes with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.sandbox.support import PATIENCE, empties, in_loop

from etude.cluster.inline import InlineCluster
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import Box, BoxSpec, Limits, RequestRefused, SandboxLost
from etude.sandbox.fleet import Fleet, FleetFull, FleetSandboxes, Policy, open_fleet
from etude.sandbox.fleet.dispatcher import Dispatcher
from etude.sandbox.fleet.load_meter import LoadMeter
from etude.sandbox.fleet.remote_box import RemoteBox
from etude.sandbox.fleet.resources import Resources

ROOMY = Policy(ceiling=Resources(1_000, 1_000, 1_000), beat_seconds=0.1)


@contextlib.asynccontextmanager
async def a_fleet(root: Path, policy: Policy = ROOMY, nodes: int = 2) -> AsyncIterator[tuple[Fleet, InlineCluster]]:
    cluster = InlineCluster(nodes)
    fleet = await open_fleet(cluster, SandboxRecipe(), root, policy=policy)
    try:
        yield fleet, cluster
    finally:
        await fleet.close()
        await cluster.close()


async def made(sandboxes: FleetSandboxes, image: str) -> RemoteBox:
    box = await sandboxes.create(BoxSpec(image))
    assert isinstance(box, RemoteBox)
    return box


async def census(fleet: Fleet) -> dict[str, int]:
    counts: dict[str, int] = await fleet.dispatcher.call("census", deadline=PATIENCE)
    return counts


async def until(fleet: Fleet, holds: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    async with asyncio.timeout(PATIENCE):
        while not holds(counts := await census(fleet)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return counts


async def end_own_tasks(cluster: InlineCluster) -> None:
    """Of the dispatcher: an inline service's own tasks outlive its death."""
    dispatcher = cluster.remotes["fleet"]._hosted._object  # type: ignore[union-attr]
    assert isinstance(dispatcher, Dispatcher)
    tasks = list(dispatcher._tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def lost(box: Box) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            await box.exec("true", timeout=5)


@in_loop
async def test_a_lost_node_loses_its_boxes_and_no_others(tmp_path: Path) -> None:
    async with a_fleet(tmp_path, replace(ROOMY, host_rate=0.5, host_burst=1)) as (fleet, cluster):
        sandboxes = fleet.sandboxes()
        boxes = await asyncio.gather(*(sandboxes.create(BoxSpec("host")) for _ in range(2)))
        by_host = {box.host_name: box for box in boxes if isinstance(box, RemoteBox)}
        safe, doomed = by_host["fleet-node-0"], by_host["fleet-node-1"]
        running = asyncio.create_task(doomed.exec("sleep 60", timeout=60))
        living = asyncio.create_task(safe.exec("sleep 0.5; echo alive", timeout=60))
        await asyncio.sleep(0.2)
        await cluster.lose_node("node-1")
        for request in (running, doomed.exec("true", timeout=5), doomed.read_file("x"), doomed.fork()):
            with pytest.raises(SandboxLost):
                await request
        await doomed.destroy()
        assert (await living).stdout == b"alive\n"
        assert (await safe.exec("echo on", timeout=5)).stdout == b"on\n"
        counts = await until(fleet, lambda counts: len(counts) == 1)
        assert set(counts) == {"fleet-node-0"}
        again = await sandboxes.create(BoxSpec("host"))
        assert (await again.exec("true", timeout=5)).code == 0


@in_loop
async def test_a_host_that_died_on_a_living_node_comes_back_empty(tmp_path: Path) -> None:
    async with a_fleet(tmp_path, nodes=1) as (fleet, _):
        box = await fleet.sandboxes().create(BoxSpec("host"))
        (host,) = fleet.hosts.values()
        await host.kill()
        with pytest.raises(SandboxLost):
            await box.exec("true", timeout=5)
        await until(fleet, lambda counts: list(counts.values()) == [0])
        fresh = await fleet.sandboxes().create(BoxSpec("host"))
        assert (await fresh.exec("true", timeout=5)).code == 0


@in_loop
async def test_boxes_of_a_client_that_fell_silent_go(tmp_path: Path) -> None:
    async with a_fleet(tmp_path, replace(ROOMY, lease_seconds=3.0)) as (fleet, _):
        silent, faithful = fleet.sandboxes(), fleet.sandboxes()
        lost, kept = await silent.create(BoxSpec("host")), await faithful.create(BoxSpec("host"))
        assert silent._renewing is not None
        silent._renewing.cancel()
        await until(fleet, lambda counts: sum(counts.values()) == 1)
        with pytest.raises(SandboxLost):
            await lost.exec("true", timeout=5)
        assert (await kept.exec("true", timeout=5)).code == 0


@in_loop
async def test_boxes_go_when_their_dispatcher_is_gone_for_long(tmp_path: Path) -> None:
    async with a_fleet(tmp_path, replace(ROOMY, orphan_seconds=0.5), nodes=1) as (fleet, cluster):
        box = await fleet.sandboxes().create(BoxSpec("host"))
        await end_own_tasks(cluster)
        await fleet.dispatcher.kill()
        with pytest.raises(SandboxLost):
            await lost(box)


@in_loop
async def test_a_new_dispatcher_learns_what_the_hosts_hold(tmp_path: Path) -> None:
    async with a_fleet(tmp_path) as (fleet, cluster):
        sandboxes = fleet.sandboxes()
        image = await sandboxes.add_image({"a": b"1"})
        box = await made(sandboxes, image)
        await box.write_file("b", b"2")
        saved = await box.snapshot()
        await end_own_tasks(cluster)
        await fleet.dispatcher.restart(deadline=PATIENCE)
        await fleet.dispatcher.call("open", deadline=PATIENCE)
        assert sorted((await census(fleet)).values()) == [0, 1]
        assert (await box.exec("true", timeout=5)).code == 0
        (child,) = await box.fork()
        assert isinstance(child, RemoteBox)
        assert (child.host_name, await child.read_file("b")) == (box.host_name, b"2")
        copy = await made(sandboxes, saved)
        assert (copy.host_name, await copy.read_file("b")) == (box.host_name, b"2"), "a snapshot stays at home"
        await fleet.dispatcher.call("drain", box.host_name, 60.0, deadline=PATIENCE)
        elsewhere = await sandboxes.create(BoxSpec(image))
        assert await elsewhere.read_file("a") == b"1", "made anew on a host that did not have it"
        await sandboxes.close()
        await until(fleet, lambda counts: list(counts.values()) == [0])


@pytest.mark.parametrize("turns", range(5))
@in_loop
async def test_a_dispatcher_ends_though_something_happens_at_that_moment(turns: int) -> None:
    """However many turns of the event loop lie between what happened and its end."""
    dispatcher = Dispatcher({}, ROOMY)
    keeping_time = asyncio.create_task(dispatcher._tick_forever())
    await asyncio.sleep(0.01)
    await dispatcher.renew("nobody")
    for _ in range(turns):
        await asyncio.sleep(0)
    keeping_time.cancel()
    await asyncio.wait([keeping_time], timeout=5)
    ended = keeping_time.done()
    while not keeping_time.done():
        keeping_time.cancel()
        await asyncio.sleep(0.01)
    assert ended


@in_loop
async def test_a_drained_host_gets_nothing_and_ends_with_its_last_box(tmp_path: Path) -> None:
    async with a_fleet(tmp_path) as (fleet, _):
        sandboxes = fleet.sandboxes()
        box = await made(sandboxes, "host")
        await fleet.dispatcher.call("drain", box.host_name, 60.0, deadline=PATIENCE)
        other = await made(sandboxes, "host")
        assert other.host_name != box.host_name
        with pytest.raises(SandboxLost, match="draining"):
            await box.fork()
        assert (await box.exec("true", timeout=5)).code == 0
        await box.destroy()
        counts = await until(fleet, lambda counts: len(counts) == 1)
        assert counts == {other.host_name: 1}
        await fleet.dispatcher.call("drain", other.host_name, 0.2, deadline=PATIENCE)
        await until(fleet, lambda counts: not counts)
        with pytest.raises(SandboxLost):
            await other.exec("true", timeout=5)
        with pytest.raises(RequestRefused, match="no host"):
            await fleet.dispatcher.call("drain", other.host_name, 1.0, deadline=PATIENCE)


@in_loop
async def test_a_full_fleet_says_when_to_come_back(tmp_path: Path) -> None:
    memory = LoadMeter(tmp_path).capacity.total.memory_mb
    async with a_fleet(tmp_path, replace(ROOMY, ceiling=Resources(1_000, 2, 1_000), patience=0.5)) as (fleet, _):
        sandboxes = fleet.sandboxes()
        with pytest.raises(RequestRefused, match="no host has room"):
            await sandboxes.create(BoxSpec("host", limits=Limits(memory_mb=int(3 * memory))))
        large = Limits(memory_mb=int(0.9 * memory))
        made = await asyncio.gather(
            *(sandboxes.create(BoxSpec("host", limits=large)) for _ in range(5)), return_exceptions=True
        )
        refused = [outcome for outcome in made if isinstance(outcome, FleetFull)]
        assert refused
        assert refused[0].retry_after >= 1.0
        assert "try again" in str(refused[0])
        assert "is short of memory (" in str(refused[0])
        assert len(refused) < 5


@in_loop
async def test_output_streams_and_a_failing_listener_ends_its_command(tmp_path: Path) -> None:
    async with a_fleet(tmp_path, nodes=1) as (fleet, _):
        box = await fleet.sandboxes().create(BoxSpec("host"))
        came: list[bytes] = []
        seen = asyncio.Event()

        def listen(_: int, data: bytes) -> None:
            came.append(data)
            seen.set()

        running = asyncio.create_task(box.exec("echo a; read x; echo b", timeout=20, on_output=listen))
        assert (await running).stdout == b"a\nb\n"
        assert b"".join(came) == b"a\nb\n"

        def fail(_: int, data: bytes) -> None:
            raise ValueError("no more")

        with pytest.raises(ValueError, match="no more"):
            await box.exec("echo a; sleep 60", timeout=60, on_output=fail)
        assert await empties(box)
