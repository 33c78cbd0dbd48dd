"""A box that is created for one purpose, and destroyed at the end of the with-block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from etude.sandbox.contract import Box, BoxSpec, Sandboxes


@asynccontextmanager
async def fresh_box(sandboxes: Sandboxes, spec: BoxSpec) -> AsyncIterator[Box]:
    box = await sandboxes.create(spec)
    try:
        yield box
    finally:
        await box.destroy()
