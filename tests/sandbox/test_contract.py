"""The embedded backend keeps the contract, with what boxes write in memory and in plain folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.sandbox import Make, SandboxContract

from etude.sandbox import EmbeddedSandboxes
from etude.sandbox.embedded.probe import probe_host


@pytest.mark.skipif(not probe_host().memory_cells, reason="this kernel's tmpfs keeps no user attributes")
class TestMemoryCells(SandboxContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: EmbeddedSandboxes(tmp_path / "boxes", memory_cells=True)


@pytest.mark.slow
class TestFolderCells(SandboxContract):
    beyond_core = pytest.mark.soak

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: EmbeddedSandboxes(tmp_path / "boxes", memory_cells=False)
