from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.parts import open_boxes

from etude.sandbox import EmbeddedSandboxes


@pytest.fixture
def sandboxes(tmp_path: Path) -> EmbeddedSandboxes:
    """For tests that run `in_loop`, which closes them."""
    return open_boxes(tmp_path / "sandboxes")
