from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from etude.cluster import Health, Remote, ServiceDied, ServiceFailed, Supervised, open_cluster, start_supervised
from etude.journal import Journal, read_journal
from etude.recipe.compute import ClusterRecipe

pytestmark = pytest.mark.anyio
ECHO = "tests.contract.cluster_services:Echo"


class Notes:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, kind: str, /, **fields: Any) -> None:
        self.events.append((kind, fields))


class Door:
    """A service whose calls wait until the test lets them pass: inline, it lives in this process."""

    waiting = 0
    opened: asyncio.Event

    async def enter(self) -> str:
        Door.waiting += 1
        await Door.opened.wait()
        return "entered"


async def supervised(tmp_path: Path, notes: Notes, restarts: int, service: str = ECHO) -> Supervised:
    cluster = await open_cluster("inline", run_folder=tmp_path)
    remote = await cluster.start("echo", service)
    watched = Supervised(remote, restarts, on_event=notes.event)
    watched.cluster = cluster  # type: ignore[attr-defined] # keeps it open
    return watched


async def test_many_calls_in_flight_cost_one_restart(tmp_path: Path) -> None:
    notes = Notes()
    Door.waiting, Door.opened = 0, asyncio.Event()
    echo = await supervised(tmp_path, notes, 1, f"{__name__}:Door")
    calls = [asyncio.ensure_future(echo.call("enter", deadline=60)) for _ in range(10)]
    while Door.waiting < len(calls):  # noqa: ASYNC110 - what is called must not know
        await asyncio.sleep(0.01)
    await echo.remote.kill()
    Door.opened.set()
    assert await asyncio.gather(*calls) == ["entered"] * 10
    assert echo.used == 1
    [(kind, fields)] = notes.events
    assert (kind, fields["service"], fields["incarnation"]) == ("service_started", "echo", 2)
    assert "echo" in fields["reason"]


async def test_it_gives_up_and_says_so(tmp_path: Path) -> None:
    echo = await supervised(tmp_path, Notes(), 2)
    for _ in range(2):
        await echo.remote.kill()
        assert await echo.call("add", deadline=60) == 1
    await echo.remote.kill()
    with pytest.raises(ServiceDied, match=r"echo.*given up after 2 restarts"):
        await echo.call("add", deadline=60)


async def test_other_failures_are_not_repeated(tmp_path: Path) -> None:
    notes = Notes()
    echo = await supervised(tmp_path, notes, 3)
    with pytest.raises(ServiceFailed):
        await echo.call("undeclared", deadline=60)
    assert notes.events == []


async def test_one_that_nobody_calls_is_watched(tmp_path: Path) -> None:
    echo = await supervised(tmp_path, Notes(), 1)

    async def work() -> int:
        await echo.remote.kill()
        while not await echo.still_serves(2):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not await echo.still_serves(1)
        return 7

    assert await echo.run_watched(work(), every=0.05) == 7
    await echo.remote.kill()
    with pytest.raises(ServiceDied, match="given up"):
        await echo.run_watched(asyncio.sleep(30), every=0.05)


async def test_a_start_is_told_and_may_be_repeated(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", "driver")
    cluster = await open_cluster("inline", run_folder=tmp_path)
    echo = await start_supervised(cluster, ClusterRecipe(restarts=1), journal, "echo", ECHO)
    await echo.heal(1, "on purpose")
    await echo.heal(1, "seen late: somebody else healed it")
    assert echo.used == 1
    started = [entry.fields for entry in read_journal(journal.folder, kind="service_started")]
    assert [(e["service"], e["incarnation"], e["reason"]) for e in started] == [
        ("echo", 1, ""),
        ("echo", 2, "on purpose"),
    ]
    assert all(isinstance(e["pid"], int) for e in started)
    assert echo.local_pid == started[-1]["pid"]
    await cluster.close()


class Away:
    """A service of which only its health is asked."""

    name = "away"

    def __init__(self, *, here: bool) -> None:
        self.here = here

    async def health(self, *, deadline: float = 5.0) -> Health:
        return Health(True, 4711, 1, 0.0, here=self.here)


@pytest.mark.parametrize(("here", "local"), [(True, 4711), (False, None)])
async def test_a_pid_of_another_machine_is_told_but_is_none_of_this_one(here: bool, local: int | None) -> None:
    notes = Notes()
    watched = Supervised(cast(Remote, Away(here=here)), 0, on_event=notes.event)
    await watched.record_start()
    assert watched.local_pid == local
    assert notes.events[0][1]["pid"] == 4711
