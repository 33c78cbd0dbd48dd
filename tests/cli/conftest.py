from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The temporary folder of the command, so that what it leaves there can be told from what others leave."""
    place = tmp_path / "tmp"
    place.mkdir()
    return place


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions and rules of tests are nobody's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
