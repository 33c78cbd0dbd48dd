"""Opens a fleet on a cluster: a sandbox host on each node, and the dispatcher on the driver's node."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from etude.cluster.contract import Cluster, ClusterError, Remote
from etude.cluster.supervise import OnEvent, Supervised
from etude.recipe.acting import SandboxRecipe
from etude.sandbox.contract import Capability, Feature, SandboxError, SandboxUnavailable
from etude.sandbox.fleet.client import FleetSandboxes
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.open import without_fleet

_CPUS = 0.1
"""CPUs that each service requests from the cluster. The boxes' CPUs are accounted for by the fleet itself."""


@dataclass(slots=True)
class Fleet:
    dispatcher: Remote
    hosts: dict[str, Remote]
    features: frozenset[Feature]
    capabilities: frozenset[Capability]
    policy: Policy

    def sandboxes(self) -> FleetSandboxes:
        """Return a new client, which owns its own boxes."""
        return FleetSandboxes(self.dispatcher, self.features, self.policy, self.capabilities)

    async def keep(self, restarts: int, on_event: OnEvent) -> None:
        """Restart the dispatcher whenever it has died, at most `restarts` times. Runs until cancelled."""
        deadline = self.policy.create_seconds
        supervised = Supervised(self.dispatcher, restarts, on_event=on_event, start_deadline=deadline)
        while True:
            await asyncio.sleep(self.policy.beat_seconds)
            seen, health = supervised.incarnation, await self.dispatcher.health(deadline=deadline)
            if not health.alive:
                await supervised.heal(seen, f"{self.dispatcher.name} was found dead: {health.detail}")
                await self.dispatcher.call("open", deadline=deadline)

    async def close(self) -> None:
        """Destroy every box of every client, and end the services."""
        with contextlib.suppress(ClusterError):
            await self.dispatcher.kill()
        await asyncio.gather(*(_end(host) for host in self.hosts.values()))


async def open_fleet(cluster: Cluster, recipe: SandboxRecipe, root: Path, *, policy: Policy | None = None) -> Fleet:
    """Open a fleet on `recipe.hosts` of the cluster's nodes (0: all). `root` exists on every node, local or shared;
    each host has a folder of its own below it."""
    policy = policy or Policy()
    nodes = await cluster.nodes()
    if recipe.hosts > len(nodes):
        raise SandboxUnavailable(
            f"sandbox.hosts = {recipe.hosts}, but the cluster has {len(nodes)}: {', '.join(nodes)}; see cluster.nodes"
        )
    service, own = "etude.sandbox.fleet.host:SandboxHost", without_fleet(recipe)
    hosts: dict[str, Remote] = {}
    try:
        for node in nodes[: recipe.hosts or None]:
            host = f"fleet-{node}"
            hosts[host] = await cluster.start(host, service, own, Path(root) / host, policy, node=node, cpus=_CPUS)
        dispatcher = await cluster.start(
            "fleet", "etude.sandbox.fleet.dispatcher:Dispatcher", hosts, policy, cpus=_CPUS
        )
        features, capabilities = await dispatcher.call("open", deadline=policy.create_seconds)
    except (ClusterError, SandboxError) as error:
        await asyncio.gather(*(_end(host) for host in hosts.values()))
        raise SandboxUnavailable(f"the fleet did not open: {error}") from error
    return Fleet(dispatcher, hosts, features, capabilities, policy)


async def _end(host: Remote) -> None:
    with contextlib.suppress(ClusterError):
        await host.call("close", deadline=30.0)
    await host.kill()
