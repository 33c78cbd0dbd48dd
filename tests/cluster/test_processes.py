"""What only the backend of processes has: a fork server, which may die, and modules that it imports once for all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from etude.cluster import ClusterError, ServiceDied, open_cluster
from etude.cluster.processes import ProcessCluster

ECHO = "tests.contract.cluster_services:Echo"
MODULE = "tests.cluster.test_processes"
IMPORTED_BY = os.getpid()


class Imported:
    async def by(self) -> int:
        return IMPORTED_BY

    async def pid(self) -> int:
        return os.getpid()


def test_a_module_is_imported_once_for_all_services_but_anew_with_variables_of_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = await open_cluster("processes", run_folder=tmp_path)
        one = await cluster.start("one", f"{MODULE}:Imported")
        two = await cluster.start("two", f"{MODULE}:Imported")
        own = await cluster.start("own", f"{MODULE}:Imported", env={"ETUDE_MARK": "1"})
        importers = [await service.call("by", deadline=60) for service in (one, two, own)]
        pids = [await service.call("pid", deadline=60) for service in (one, two, own)]
        assert importers[0] == importers[1] not in pids
        assert importers[2] == pids[2]
        await cluster.close()

    asyncio.run(run())


def test_without_its_fork_server_services_go_on_but_none_is_started(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = await open_cluster("processes", run_folder=tmp_path)
        assert isinstance(cluster, ProcessCluster)
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

    asyncio.run(run())
