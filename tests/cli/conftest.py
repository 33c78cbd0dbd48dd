from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


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
