"""Boxes of one test with a way out to a small internet, and what was logged of them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sandbox.egress_internet import Internet

from etude.sandbox import Box, BoxSpec, Egress, EmbeddedSandboxes, Limits
from etude.sandbox.egress import read_log

ALLOWED = Egress("test", ("index.example", "files.example", "packages.example", "deb.distro.example", "git.example"))
ROOMY = Limits(memory_mb=2048, disk_mb=256, cpu_seconds=60)


class Scene:
    """One test's boxes on the module's backend, and what was logged since it began."""

    def __init__(self, internet: Internet, sandboxes: EmbeddedSandboxes) -> None:
        self.internet, self.sandboxes = internet, sandboxes
        self.boxes: list[Box] = []
        self._log = sandboxes.store.root / "egress"
        self._before = len(list(read_log(self._log)))
        internet.asked.clear()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(read_log(self._log))[self._before :]

    @property
    def refused(self) -> list[str]:
        return [row["refused"] for row in self.rows if "refused" in row]

    async def settled(self) -> None:
        """Returns when every connection has ended: a row follows the last byte, which the box may have before."""
        gate = self.sandboxes._egress
        assert gate is not None
        async with asyncio.timeout(30):
            while gate.connection_limit.count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def box(self, egress: Egress = ALLOWED, image: str = "host") -> Box:
        self.boxes.append(await self.sandboxes.create(BoxSpec(image, egress=egress, limits=ROOMY)))
        return self.boxes[-1]


def on_stage(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(stage: Scene, **arguments: Any) -> None:
        async def body() -> None:
            try:
                await test(stage, **arguments)
            finally:
                await asyncio.gather(*(box.destroy() for box in stage.boxes))

        asyncio.run(body())

    return run
