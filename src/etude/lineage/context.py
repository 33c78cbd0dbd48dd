"""The context passed to every stage: recipe, run folder, journal, screen, and a cluster and a fleet of sandboxes that
start on first use."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from etude.cluster import Cluster, Supervised, open_cluster, start_supervised
from etude.journal import Journal, RunPaths
from etude.lineage.screen import Screen
from etude.lineage.state import LineageState
from etude.recipe import Recipe
from etude.sandbox.fleet import Fleet, open_fleet

if TYPE_CHECKING:
    from etude.training.compute import Compute


@dataclass(slots=True)
class RunContext:
    recipe: Recipe
    paths: RunPaths
    state: LineageState
    journal: Journal
    screen: Screen
    _cluster: Cluster | None = field(default=None, init=False)
    _fleet: Fleet | None = field(default=None, init=False)
    _keeper: asyncio.Task[None] | None = field(default=None, init=False)
    _compute: Compute | None = field(default=None, init=False)

    def save_state(self) -> None:
        self.state.save(self.paths.lineage)

    def compute(self) -> Compute:
        """Return the run's device, dtype and threads: chosen for this machine once, then read from lineage.json."""
        # Imported here so that what needs no torch (a lock, a mistake in the recipe, a report) does not load it.
        from etude.training.compute import Compute, choose_compute

        if self._compute is None:
            if self.state.compute:
                self._compute = Compute(**self.state.compute)
            else:
                self._compute = choose_compute(self.recipe.compute)
                self.state.compute = asdict(self._compute)
                self.save_state()
        return self._compute

    def resolved_recipe(self) -> Recipe:
        """Return the recipe with the probed dtype and threads filled in, so that services compute alike after a
        restart."""
        chosen = self.compute()
        fixed = self.recipe.compute.model_copy(update={"dtype": chosen.dtype_name, "threads": chosen.threads})
        return self.recipe.model_copy(update={"compute": fixed})

    async def cluster(self) -> Cluster:
        if self._cluster is None:
            async with self.journal.waiting(on="cluster", deadline=60.0):
                self._cluster = await open_cluster(
                    self.recipe.cluster.backend, run_folder=self.paths.root, nodes=self.recipe.cluster.nodes
                )
        return self._cluster

    async def start(self, name: str, service: str, *args: Any, cpus: float = 0.1) -> Supervised:
        """Start a service that may be restarted up to `cluster.restarts` times."""
        limits = self.recipe.cluster
        return await start_supervised(await self.cluster(), limits, self.journal, name, service, *args, cpus=cpus)

    async def fleet(self) -> Fleet | None:
        """Return the fleet, which runs sandboxes on the first `sandbox.hosts` nodes; None if each process runs its
        own."""
        if self.recipe.sandbox.hosts and self._fleet is None:
            self._fleet = await open_fleet(await self.cluster(), self.recipe.sandbox, self.paths.sandboxes)
            keeping = self._fleet.keep(self.recipe.cluster.restarts, self.journal.event)
            self._keeper = asyncio.create_task(keeping)
        return self._fleet

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        if self._fleet is not None:
            fleet, self._fleet = self._fleet, None
            await fleet.close()
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            await cluster.close()
