"""What several files of this folder share: a container engine of each kind is started once, at its first use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from tests.sandbox.oci_engine import ENGINES, OwnEngine, own_engine


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
