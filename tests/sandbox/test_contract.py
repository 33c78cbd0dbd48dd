"""The embedded backend keeps the contract, with what boxes write in memory and in plain folders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.sandbox import Make, SandboxContract

from etude.sandbox import EmbeddedSandboxes
from etude.sandbox.embedded.probe import probe_host


class Lent(EmbeddedSandboxes):
    """Lent to many cases, since its start costs more than most of them: closing it ends the boxes of one case. That
    also sees that the zygote outlived the case, since the next one would get a new zygote unnoticed."""

    async def close(self) -> None:
        await asyncio.gather(*(box.destroy() for box in list(self._boxes.values())))
        self.zygote = getattr(self, "zygote", self._zygote)
        assert self.zygote is self._zygote
        assert self.zygote.alive


def lent(request: pytest.FixtureRequest, folder: Path, *, memory_cells: bool) -> Iterator[None]:
    backend = Lent(folder / "boxes", memory_cells=memory_cells)
    request.cls.lend = staticmethod(lambda: backend)
    yield
    asyncio.run(EmbeddedSandboxes.close(backend))


@pytest.mark.skipif(not probe_host().memory_cells, reason="this kernel's tmpfs keeps no user attributes")
class TestMemoryCells(SandboxContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: EmbeddedSandboxes(tmp_path / "boxes", memory_cells=True)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def lent(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        yield from lent(request, tmp_path_factory.mktemp("lent"), memory_cells=True)


@pytest.mark.slow
class TestFolderCells(SandboxContract):
    beyond_core = pytest.mark.soak

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: EmbeddedSandboxes(tmp_path / "boxes", memory_cells=False)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def lent(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        yield from lent(request, tmp_path_factory.mktemp("lent"), memory_cells=False)
