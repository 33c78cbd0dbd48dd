"""What only the backend of processes has: a fork server, which may die, and modules that it imports once for all."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from etude.cluster import ClusterError, DeadlineExceeded, ServiceDied, guardian, open_cluster
from etude.cluster.processes import ProcessCluster

pytestmark = pytest.mark.anyio
ECHO = "tests.contract.cluster_services:Echo"
MODULE = "tests.cluster.test_processes"
IMPORTED_BY = os.getpid()


class Imported:
    async def by(self) -> int:
        return IMPORTED_BY

    async def pid(self) -> int:
        return os.getpid()

    def child(self) -> str:
        """Start a program that outlives its service, and print its pid."""
        pid = subprocess.Popen(["sleep", "600"]).pid
        sys.stdout.write(f"{pid}\n")
        return guardian.identity(pid) or ""


@pytest.fixture
async def cluster(tmp_path: Path, anyio_backend: str) -> AsyncIterator[ProcessCluster]:
    opened = await open_cluster("processes", run_folder=tmp_path)
    assert isinstance(opened, ProcessCluster)
    yield opened
    await opened.close()


async def test_a_module_is_imported_once_for_all_but_anew_with_variables_of_its_own(
    cluster: ProcessCluster,
) -> None:
    one = await cluster.start("one", f"{MODULE}:Imported")
    two = await cluster.start("two", f"{MODULE}:Imported")
    own = await cluster.start("own", f"{MODULE}:Imported", env={"ETUDE_MARK": "1"})
    importers = [await service.call("by", deadline=60) for service in (one, two, own)]
    pids = [await service.call("pid", deadline=60) for service in (one, two, own)]
    assert importers[0] == importers[1] not in pids
    assert importers[2] == pids[2]


async def test_without_its_fork_server_services_go_on_but_none_is_started(tmp_path: Path) -> None:
    cluster = await open_cluster("processes", run_folder=tmp_path)
    echo = await cluster.start("echo", ECHO)
    cluster._server.kill()
    cluster._server.wait()
    assert await echo.call("greet", "Ada", deadline=60) == "hello Ada"
    with pytest.raises(ClusterError, match="its cluster is gone"):
        await cluster.start("late", ECHO)
    os.kill(await echo.call("pid", deadline=60), 9)
    with pytest.raises(ServiceDied):
        await echo.call("greet", "Ben", deadline=60)
    assert not (await echo.health()).alive
    await cluster.close()
    assert not cluster._folder.exists()


async def test_a_module_that_ends_its_importer_costs_one_start_and_no_other_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_its_importer.py").write_text("import os; os._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    cluster = await open_cluster("processes", run_folder=tmp_path)
    echo = await cluster.start("echo", ECHO)
    for _ in range(2):
        with pytest.raises(ClusterError, match="the process that imported ends_its_importer ended"):
            await cluster.start("ends", "ends_its_importer:Service")
        await echo.restart(deadline=60)
        assert await echo.call("greet", "Ada", deadline=60) == "hello Ada"
    await echo.kill()
    assert not (await echo.health()).alive
    ends = await cluster.start("ends", f"{MODULE}:Imported")
    assert await ends.call("pid", deadline=60)
    await cluster.close()
    assert not cluster._folder.exists()


async def test_what_nobody_refers_to_any_more_is_given_back(cluster: ProcessCluster) -> None:
    """A handle's connection, and a stored value, though not one that a restart needs."""
    greeting, passing = await cluster.put("good day"), await cluster.put("passing")
    echo = await cluster.start("echo", ECHO, greeting)
    files = greeting.path, passing.path
    assert await echo.call("greet", passing, deadline=60) == "good day passing"
    other = pickle.loads(pickle.dumps(echo))
    await other.call("add", deadline=60)
    connection = other._connection
    del greeting, passing, other
    gc.collect()
    await asyncio.sleep(0.01)
    assert connection.lost
    assert [file.exists() for file in files] == [True, False]
    await echo.restart(deadline=60)
    assert await echo.call("greet", "Ada", deadline=60) == "good day Ada"


async def test_hundreds_may_ask_at_once(cluster: ProcessCluster) -> None:
    echo = await cluster.start("echo", ECHO)

    async def counted() -> list[int]:
        return [number async for number in echo.stream("numbers", 3, deadline=120)]

    pid = (await echo.health()).pid
    os.kill(pid, signal.SIGSTOP)  # so that all of them wait to be accepted
    asked = asyncio.gather(*(counted() for _ in range(300)))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGCONT)
    assert await asked == [[0, 1, 2]] * 300


async def test_a_start_that_is_late_or_given_up_leaves_its_name_free(cluster: ProcessCluster) -> None:
    with pytest.raises(DeadlineExceeded):
        await cluster.start("echo", ECHO, slow=60.0, deadline=0.5)
    for steps in range(8):
        starting = asyncio.ensure_future(cluster.start("echo", ECHO, slow=60.0))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    echo = await cluster.start("echo", ECHO)
    assert await echo.call("greet", "Ada", deadline=60) == "hello Ada"


async def test_a_late_restart_does_not_kill_the_one_that_replaced_it(cluster: ProcessCluster) -> None:
    one = await cluster.start("echo", ECHO, slow=1.0)
    other = pickle.loads(pickle.dumps(one))
    late = asyncio.ensure_future(one.restart(deadline=0.6))
    await asyncio.sleep(0.3)
    await other.restart(deadline=60)
    with pytest.raises(ClusterError):
        await late
    assert (await other.health()).incarnation == 3
    assert await one.call("greet", "Ada", deadline=60) == "hello Ada"


async def test_what_a_service_printed_is_kept_and_what_it_started_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    cluster = await open_cluster("processes", run_folder=tmp_path)
    children: list[str] = []
    for name, env in (("fork", {}), ("fresh", {"ETUDE_MARK": "1"})):
        service = await cluster.start(name, f"{MODULE}:Imported", env=env)
        child = await service.call("child", deadline=60)
        await service.kill()
        assert (tmp_path / "logs" / f"{name}.log").read_text() == f"{child.split()[0]}\n"
        children.append(child)
    await cluster.close()
    assert [child for child in children if guardian.alive(child)] == []


async def test_the_current_folder_is_not_searched_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    cluster = await open_cluster("processes", run_folder=tmp_path)
    for name, env in (("fork", {}), ("fresh", {"ETUDE_MARK": "1"})):
        service = await cluster.start(name, f"{MODULE}:Imported", env=env)
        assert await service.call("pid", deadline=60)
    await cluster.close()
