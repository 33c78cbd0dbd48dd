"""Contract suite of cluster backends. Each `check_*` takes an open cluster. Service names are unique per check, so one
cluster can serve them all. A service whose process dies is not checked here: the inline backend has none to lose."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from tests.contract.cluster_services import Parcel

from etude.cluster import Cluster, ClusterError, DeadlineExceeded, Remote, ServiceDied, ServiceFailed
from etude.weights.errors import CorruptVersion

ECHO = "tests.contract.cluster_services:Echo"
RELAY = "tests.contract.cluster_services:Relay"
CPUS = 0.1
PATIENCE = 120.0
"""Deadline in seconds of calls that return at once or start a process. It is long enough for a busy machine and only
ends what hangs."""


async def started(cluster: Cluster, name: str, *args: Any, service: str = ECHO, **kwargs: Any) -> Remote:
    return await cluster.start(name, service, *args, cpus=CPUS, **kwargs)


async def check_calls(cluster: Cluster) -> None:
    echo = await started(cluster, "calls", "good day")
    assert echo.name == "calls"
    assert isinstance(echo, Remote)
    assert isinstance(cluster, Cluster)
    assert await echo.call("greet", "Ada", mark="!", deadline=PATIENCE) == "good day Ada!"
    assert [await echo.call("add", deadline=PATIENCE) for _ in range(3)] == [1, 2, 3]
    for wrong in ("nothing", "_private", "numbers"):
        with pytest.raises(ServiceFailed, match=wrong):
            await echo.call(wrong, deadline=PATIENCE)
    parcel = await echo.call("double", Parcel("p", np.arange(1000, dtype=np.float32)), deadline=PATIENCE)
    assert parcel.name == "p"
    np.testing.assert_array_equal(parcel.numbers, np.arange(1000, dtype=np.float32) * 2)


async def check_blocking_methods_leave_the_loop_free(cluster: Cluster) -> None:
    echo = await started(cluster, "blocking")
    blocked = asyncio.ensure_future(echo.call("block", deadline=90))
    await echo.call("free", deadline=PATIENCE)
    assert await blocked, "the blocking method was never released: it blocked the event loop"
    threads = await asyncio.gather(*(echo.call("thread", deadline=PATIENCE) for _ in range(8)))
    assert len(set(threads)) == 1, "sync methods must run in one thread, so that a plain class needs no locks"


async def check_exceptions(cluster: Cluster) -> None:
    echo = await started(cluster, "exceptions")
    with pytest.raises(CorruptVersion, match="version 7: tensor w"):
        await echo.call("declared", deadline=PATIENCE)
    with pytest.raises(
        ServiceFailed, match=r"(?s)exceptions\.undeclared raised builtins\.KeyError.*surprise.*Traceback"
    ):
        await echo.call("undeclared", deadline=PATIENCE)
    with pytest.raises(ServiceFailed, match="Unpicklable"):
        await echo.call("unpicklable", deadline=PATIENCE)
    with pytest.raises(ServiceFailed, match="pickle"):
        await echo.call("unsendable", deadline=PATIENCE)
    with pytest.raises(ServiceFailed, match="CancelledError"):
        await echo.call("cancelled", deadline=PATIENCE)
    with pytest.raises(ClusterError, match="pickle"):
        await echo.call("greet", threading.Lock(), deadline=PATIENCE)
    assert await echo.call("greet", "still here", deadline=PATIENCE) == "hello still here"
    with pytest.raises(ServiceFailed, match="cannot be made"):
        await started(cluster, "broken", broken=True)
    with pytest.raises(ServiceFailed, match="nowhere"):
        await started(cluster, "nowhere", service="tests.contract.nowhere:Echo")
    again = await started(cluster, "broken")
    assert await again.call("greet", "now", deadline=PATIENCE) == "hello now"
    with pytest.raises(ClusterError, match="already"):
        await started(cluster, "broken")


async def check_deadlines(cluster: Cluster) -> None:
    echo = await started(cluster, "deadlines")
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"deadlines\.sleep did not answer within 0\.3 s"):
        await echo.call("sleep", 30, deadline=0.3)
    assert time.monotonic() - begun < 20, "the caller waited for the sleeping method"
    with pytest.raises(DeadlineExceeded, match=r"deadlines\.numbers"):
        async for _ in echo.stream("numbers", 3, hang_at=1, deadline=1.0):
            pass
    with pytest.raises(DeadlineExceeded, match="tardy"):
        await started(cluster, "tardy", slow=3.0, deadline=1.0)
    assert await echo.call("greet", "Cy", deadline=PATIENCE) == "hello Cy"


async def check_streams(cluster: Cluster) -> None:
    echo = await started(cluster, "streams")
    assert [i async for i in echo.stream("numbers", 20, deadline=PATIENCE)] == list(range(20))
    assert [i async for i in echo.stream("numbers", 0, deadline=PATIENCE)] == []
    seen: list[int] = []
    with pytest.raises(CorruptVersion, match="item 2"):  # noqa: PT012
        async for item in echo.stream("numbers", 5, fail_at=2, deadline=PATIENCE):
            seen.append(item)
    assert seen == [0, 1]
    with pytest.raises(ServiceFailed, match="greet"):
        async for _ in echo.stream("greet", "x", deadline=PATIENCE):
            pass
    with pytest.raises(ServiceFailed, match="CancelledError"):
        async for _ in echo.stream("numbers", 1, cancelled_at=0, deadline=PATIENCE):
            pass
    async for _ in echo.stream("numbers", 1000, deadline=PATIENCE):
        break
    with pytest.raises(DeadlineExceeded):
        async for _ in echo.stream("numbers", 3, hang_at=0, deadline=0.3):
            pass
    until = time.monotonic() + PATIENCE
    while await echo.call("open_streams", deadline=PATIENCE):
        assert time.monotonic() < until, "streams that their callers have left are still open"
        await asyncio.sleep(0.01)


async def check_kill_and_restart(cluster: Cluster) -> None:
    echo = await started(cluster, "mortal", "hi")
    first = await echo.health()
    assert first.alive
    assert first.incarnation == 1
    assert first.pid == await echo.call("pid", deadline=PATIENCE)
    assert await echo.call("add", deadline=PATIENCE) == 1
    waiting = asyncio.ensure_future(echo.call("sleep", 30, deadline=60))
    await asyncio.sleep(0.3)
    await echo.kill()
    with pytest.raises(ServiceDied, match=r"mortal.*sleep"):
        await waiting
    with pytest.raises(ServiceDied, match=r"mortal.*greet"):
        await echo.call("greet", "x", deadline=PATIENCE)
    with pytest.raises(ServiceDied, match="mortal"):
        async for _ in echo.stream("numbers", 3, deadline=PATIENCE):
            pass
    await echo.kill()
    assert not (await echo.health()).alive
    restarting = time.monotonic()
    await echo.restart(deadline=PATIENCE)
    assert await echo.call("greet", "again", deadline=PATIENCE) == "hi again"
    assert await echo.call("add", deadline=PATIENCE) == 1, "a restarted service must start afresh from its arguments"
    second = await echo.health()
    assert second.alive
    assert second.incarnation == 2
    assert second.seconds_up < time.monotonic() - restarting + 1
    await echo.restart(deadline=PATIENCE)
    assert (await echo.health()).incarnation == 3


async def check_handles_travel(cluster: Cluster) -> None:
    echo = await started(cluster, "spoken-to", "hey")
    relay = await started(cluster, "relay", echo, service=RELAY)
    assert await relay.call("greet", "Di", deadline=PATIENCE) == "relayed: hey Di"
    assert await relay.call("take", echo, deadline=PATIENCE) == "spoken-to"
    await echo.kill()
    with pytest.raises(ServiceFailed, match=r"ServiceDied.*spoken-to"):
        await relay.call("greet", "Ed", deadline=PATIENCE)
    await echo.restart(deadline=PATIENCE)
    assert await relay.call("greet", "Flo", deadline=PATIENCE) == "relayed: hey Flo"
    await echo.restart(deadline=PATIENCE)
    assert await relay.call("greet", "Gus", deadline=PATIENCE) == "relayed: hey Gus", (
        "a handle must find a service that was restarted through another handle"
    )


async def check_put_and_get(cluster: Cluster) -> None:
    echo = await started(cluster, "storing")
    numbers = np.arange(300_000, dtype=np.float32)
    reference = await cluster.put(Parcel("big", numbers))
    stored = await cluster.get(reference, deadline=PATIENCE)
    np.testing.assert_array_equal(stored.numbers, numbers)
    doubled = await echo.call("double", reference, deadline=PATIENCE)
    np.testing.assert_array_equal(doubled.numbers, numbers * 2)


async def check_nodes(cluster: Cluster) -> None:
    first, second = await cluster.nodes()
    here = await started(cluster, "on-the-first", node=first)
    there = await started(cluster, "on-the-second", node=second)
    with pytest.raises(ClusterError, match="nowhere"):
        await started(cluster, "on-none", node="nowhere")
    with pytest.raises(ClusterError, match="lost"):
        await cluster.lose_node(first)
    await there.restart(deadline=PATIENCE)
    waiting = asyncio.ensure_future(there.call("sleep", 60, deadline=90))
    await asyncio.sleep(0.3)
    await cluster.lose_node(second)
    with pytest.raises(ServiceDied, match=r"on-the-second.*sleep"):
        await waiting
    with pytest.raises(ServiceDied, match="on-the-second"):
        await there.call("greet", "x", deadline=PATIENCE)
    assert await here.call("greet", "Hal", deadline=PATIENCE) == "hello Hal"
    with pytest.raises(ClusterError):
        await there.restart(deadline=PATIENCE)
    assert await here.call("greet", "Ida", deadline=PATIENCE) == "hello Ida"


CHECKS = (
    check_calls,
    check_blocking_methods_leave_the_loop_free,
    check_exceptions,
    check_deadlines,
    check_streams,
    check_kill_and_restart,
    check_handles_travel,
    check_put_and_get,
    check_nodes,
)
