from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Where the images of a test's boxes live."""
    return tmp_path / "sandboxes"
