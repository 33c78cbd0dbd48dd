"""The OCI backend keeps the contract: over real engines, started here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.sandbox import Make, SandboxContract
from tests.sandbox.as_nobody import for_root, pytest_as_nobody
from tests.sandbox.oci_engine import OwnEngine

from etude.sandbox import OciSandboxes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all cases: an engine needs seconds for what goes below the first box of each."""
    return tmp_path_factory.mktemp("boxes")


@pytest.mark.slow
class TestOci(SandboxContract):
    beyond_core = pytest.mark.soak
    listing = "ls -lA --time-style=+%s"
    generations = 40
    awake_forks = 1

    @pytest.fixture
    def make(self, engine: OwnEngine, root: Path) -> Make:
        return lambda: OciSandboxes(root, endpoint=engine.endpoint)


@for_root
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_it_holds_over_an_engine_that_an_ordinary_user_runs() -> None:
    """podman without root: there the box's root is not the host's, so boxes have one."""
    pytest_as_nobody("test_oci_contract.py", "test_oci.py", options=["-k", "podman"], timeout=800, lend_ids=True)
