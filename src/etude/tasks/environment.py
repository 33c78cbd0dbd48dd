"""The environment of a task, prepared: the sealed image that every agent and every grading starts from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from etude.sandbox.contract import Sandboxes
from etude.tasks.directory import WORKDIR, read_files
from etude.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Prepared:
    image: str
    workdir: str
    files: Mapping[str, bytes]
    """Of the workdir: what the agent's diff is a diff of."""


class Environments:
    """Prepares each environment once; `prepare` may raise TaskError and SandboxError."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def prepare(self, task: Task) -> Prepared:
        """The agent's view of the repository: the workspace alone, without tests or solution."""
        files = await asyncio.to_thread(read_files, task.directory)
        return Prepared(await self._sandboxes.add_image(files, workdir=WORKDIR), WORKDIR, files)
