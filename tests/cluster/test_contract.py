"""The contract suite on every backend; one event loop and one cluster per backend, since ray takes seconds to start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.cluster import CHECKS

from etude.cluster import Cluster, ClusterError, open_cluster

Opened = tuple[Cluster, asyncio.Runner]


@pytest.fixture(scope="module", params=["inline", "processes", pytest.param("ray", marks=pytest.mark.slow)])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with asyncio.Runner() as runner:
        folder: Path = tmp_path_factory.mktemp(request.param)
        cluster = runner.run(open_cluster(request.param, run_folder=folder, cpus=2, nodes=2))
        yield cluster, runner
        runner.run(cluster.close())
        runner.run(cluster.close())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(opened: Opened, check: object) -> None:
    cluster, runner = opened
    runner.run(check(cluster))  # type: ignore[operator]


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="expected"):
        asyncio.run(open_cluster("slurm", run_folder=tmp_path))  # type: ignore[arg-type]
