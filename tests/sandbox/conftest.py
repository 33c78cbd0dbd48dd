"""What several files of this folder share. A container engine of each kind is started once, at its first use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.sandbox.egress_internet import Internet
from tests.sandbox.egress_scene import Scene
from tests.sandbox.oci_engine import ENGINES, OwnEngine, own_engine

from etude.sandbox import EmbeddedSandboxes
from etude.sandbox.images.store import ImageStore


@pytest.fixture(scope="session")
def engine_of() -> Iterator[Callable[[str], OwnEngine]]:
    with contextlib.ExitStack() as stack:
        started: dict[str, OwnEngine] = {}

        def get(kind: str) -> OwnEngine:
            if kind not in started:
                started[kind] = stack.enter_context(own_engine(ENGINES[kind]))
            return started[kind]

        yield get


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, engine_of: Callable[[str], OwnEngine]) -> OwnEngine:
    """Each case runs over every kind of engine that this machine and user can start."""
    if missing := ENGINES[request.param].missing():
        pytest.skip(f"{request.param} needs {missing}: see scripts/test-tools.sh")
    return engine_of(request.param)


@pytest.fixture
def sandboxes(tmp_path: Path) -> Iterator[EmbeddedSandboxes]:
    opened = EmbeddedSandboxes(tmp_path / "boxes")
    yield opened
    asyncio.run(opened.close())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    """Of a user with one id. What a test does with it leaves nothing half-done."""
    opened = ImageStore(tmp_path / "store", None)
    yield opened
    assert sorted(path.name for path in opened.scratch.iterdir()) == ["leases", "lock"], "something is left in scratch"
    assert list((opened.scratch / "leases").iterdir()) == []
    opened.close()


@pytest.fixture
def stage(backend: tuple[Internet, EmbeddedSandboxes]) -> Scene:
    """For a module whose `backend` serves its boxes a small internet."""
    return Scene(*backend)
