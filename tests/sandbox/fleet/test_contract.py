"""The fleet keeps the contract that each of its hosts keeps, with every call and answer pickled on its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.sandbox import Make, SandboxContract

from etude.cluster.inline import InlineCluster
from etude.recipe.acting import SandboxRecipe
from etude.sandbox.fleet import Fleet, FleetSandboxes, Policy, open_fleet
from etude.sandbox.fleet.resources import Resources

# The suite fills the machine it runs on; what is tested here is not how full it is.
POLICY = Policy(ceiling=Resources(1_000, 1_000, 1_000), host_rate=1_000, host_burst=1_000)


class OwnFleet(FleetSandboxes):
    """Opened at its first request, closed with all its services."""

    def __init__(self, root: Path) -> None:
        self._root, self._fleet = root, None
        super().__init__(None, frozenset(), POLICY, frozenset())  # type: ignore[arg-type]

    async def ask(self, method: str, *args: Any, **options: Any) -> Any:
        if self._fleet is None:
            self._cluster = InlineCluster()
            self._fleet: Fleet | None = await open_fleet(self._cluster, SandboxRecipe(), self._root, policy=POLICY)
            self.dispatcher, self.features = self._fleet.dispatcher, self._fleet.features
            self.capabilities = self._fleet.capabilities
        return await super().ask(method, *args, **options)

    async def close(self) -> None:
        await super().close()
        if self._fleet is not None:
            await self._fleet.close()
            await self._cluster.close()


@pytest.mark.slow
class TestFleet(SandboxContract):
    beyond_core = pytest.mark.soak

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: OwnFleet(tmp_path / "boxes")
