"""A client of a fleet in a process of its own, to be killed."""

from __future__ import annotations

from etude.sandbox import BoxSpec
from etude.sandbox.fleet import FleetSandboxes


class Tenant:
    def __init__(self, sandboxes: FleetSandboxes) -> None:
        self._sandboxes = sandboxes

    async def take(self, count: int) -> str:
        """What a command in the last box says."""
        for _ in range(count):
            box = await self._sandboxes.create(BoxSpec("host"))
        return (await box.exec("echo taken", timeout=10)).stdout.decode()
