"""The OCI backend keeps the contract: over a real podman and runc, started here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.sandbox import Make, SandboxContract
from tests.sandbox.oci_engine import OwnEngine, engine_is_installed

from etude.sandbox import OciSandboxes

pytestmark = pytest.mark.skipif(not engine_is_installed(), reason="needs root, podman, runc and conmon")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all cases: an engine needs seconds for what goes below the first box of each."""
    return tmp_path_factory.mktemp("boxes")


@pytest.mark.slow
class TestOci(SandboxContract):
    listing = "ls -lA --time-style=+%s"
    in_a_row = 40

    @pytest.fixture
    def make(self, engine: OwnEngine, root: Path) -> Make:
        return lambda: OciSandboxes(root, endpoint=engine.endpoint)
