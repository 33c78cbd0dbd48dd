"""What several files of this folder share: a container engine is started once, at its first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sandbox.oci_engine import OwnEngine, own_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[OwnEngine]:
    with own_engine() as engine:
        yield engine
