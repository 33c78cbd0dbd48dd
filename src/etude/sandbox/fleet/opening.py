"""Opens a fleet on a cluster: a sandbox host on each node, and the dispatcher beside the driver."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from etude.cluster.contract import Cluster, ClusterError, Remote
from etude.recipe.acting import SandboxRecipe
from etude.sandbox.contract import Feature, SandboxError, SandboxUnavailable
from etude.sandbox.fleet.client import FleetSandboxes
from etude.sandbox.fleet.policy import Policy

_CPUS = 0.1
"""Of each service, as the cluster counts: the boxes are counted by the fleet itself."""


@dataclass(slots=True)
class Fleet:
    dispatcher: Remote
    hosts: dict[str, Remote]
    features: frozenset[Feature]
    policy: Policy

    def sandboxes(self) -> FleetSandboxes:
        """A client with boxes of its own."""
        return FleetSandboxes(self.dispatcher, self.features, self.policy)

    async def close(self) -> None:
        """Ends every box of every client, and the services."""
        with contextlib.suppress(ClusterError):
            await self.dispatcher.kill()
        await asyncio.gather(*(_end(host) for host in self.hosts.values()))


async def open_fleet(
    cluster: Cluster, recipe: SandboxRecipe, root: Path, *, policy: Policy | None = None, name: str = "fleet"
) -> Fleet:
    """`root`: a folder on every node, of its own or shared, below which each host keeps its images."""
    policy = policy or Policy()
    hosts: dict[str, Remote] = {}
    try:
        for node in await cluster.nodes():
            host = f"{name}-{node}"
            hosts[host] = await cluster.start(
                host, "etude.sandbox.fleet.host:SandboxHost", recipe, Path(root) / host, policy, node=node, cpus=_CPUS
            )
        dispatcher = await cluster.start(name, "etude.sandbox.fleet.dispatcher:Dispatcher", hosts, policy, cpus=_CPUS)
        features = await dispatcher.call("open", deadline=policy.create_seconds)
    except (ClusterError, SandboxError) as error:
        await asyncio.gather(*(_end(host) for host in hosts.values()))
        raise SandboxUnavailable(f"the fleet did not open: {error}") from error
    return Fleet(dispatcher, hosts, features, policy)


async def _end(host: Remote) -> None:
    with contextlib.suppress(ClusterError):
        await host.call("close", deadline=30.0)
    await host.kill()
