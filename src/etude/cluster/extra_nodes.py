"""Extra ray nodes on this machine, to try out runs on several machines.

Such a node can be lost without losing the machine. Like ray_backend.py, this file imports ray only once a cluster is
open. A node's processes are children of the driver and work in the cluster's folder, so the guardian kills them with
all others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil

from etude.cluster.ray_environment import STORE_BYTES, TOKEN, auth_token, store_folder


def node_name(number: int) -> str:
    """Name of a node, and of the ray resource that it offers, by which it is found."""
    return f"node-{number}"


class ExtraNode:
    """One extra ray node, alive from its construction on."""

    def __init__(self, number: int, address: str, cpus: int, folder: Path) -> None:
        """Start the node; blocks for about a second. This uses ray's private classes, as ray's own tests do, because a
        node started through ray's public API does not stay on the loopback."""
        from ray._private.node import Node
        from ray._private.parameter import RayParams

        self.name = node_name(number)
        parameters: Any = RayParams(
            gcs_address=address,
            num_cpus=cpus,
            num_gpus=0,
            resources={self.name: 1},
            node_ip_address="127.0.0.1",
            node_manager_port=0,
            object_store_memory=STORE_BYTES,
            plasma_directory=store_folder(folder),
            include_log_monitor=False,
            min_worker_port=0,
            max_worker_port=0,
            dashboard_agent_listen_port=None,
        )
        os.environ[TOKEN] = auth_token()
        try:
            self._node: Any = Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
        finally:
            os.environ.pop(TOKEN, None)

    def lose(self) -> None:
        """Kill every process of the node at once, like a power cut."""
        tops = [info.process.pid for infos in self._node.all_processes.values() for info in infos]
        found: list[psutil.Process] = []
        for pid in tops:
            try:
                top = psutil.Process(pid)
                found += [top, *top.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(found, timeout=10)
