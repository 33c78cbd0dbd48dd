"""Async tests run on asyncio, by the plugin that comes with anyio."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
