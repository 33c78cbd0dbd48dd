"""A context manager for a sandbox box that is created for one purpose and destroyed afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from etude.sandbox.contract import Box, BoxSpec, Sandboxes


@asynccontextmanager
async def fresh_box(sandboxes: Sandboxes, spec: BoxSpec) -> AsyncIterator[Box]:
    """Create a box, and destroy it at the end of the with-block."""
    box = await sandboxes.create(spec)
    try:
        yield box
    finally:
        await box.destroy()
