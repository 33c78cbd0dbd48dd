"""Opens a cluster by the name of its backend."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from etude.cluster.contract import Cluster, ClusterError


async def open_cluster(
    backend: Literal["processes", "ray", "inline"], *, run_folder: Path, cpus: int | None = None, nodes: int = 1
) -> Cluster:
    """Open a cluster, which the caller must `close`. Services that run in their own process write their output to
    `run_folder/logs/<name>.log`.

    `cpus` is how many cores the services of one ray node may request together (default: every core this process may
    use). `nodes` above 1 adds more nodes on this machine, to try out runs on several machines."""
    if backend == "inline":
        from etude.cluster.inline import InlineCluster

        return InlineCluster(nodes)
    if backend == "processes":
        from etude.cluster.processes import ProcessCluster

        return ProcessCluster(Path(run_folder), nodes)
    if backend == "ray":
        from etude.cluster.ray_backend import RayCluster

        return await RayCluster.open(Path(run_folder), cpus).add_nodes(nodes - 1)
    raise ClusterError(f'unknown cluster backend {backend!r}; expected "processes", "ray" or "inline"')
