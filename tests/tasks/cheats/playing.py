"""Environments written, honest solutions graded, cheats tried: each with boxes of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from etude.tasks import Grader, Task, Verdict, reference_diff
from etude.tasks.cheats import Attempt, Cheat, try_cheats

from ..conftest import Boxes
from .environments import OTHER, micro_environments


def written(folder: Path, *names: str) -> list[Task]:
    """Environments of ours by their names; all of them without any."""
    return [micro.write(folder) for micro in micro_environments() if not names or micro.name in names]


def honest(boxes: Boxes, tasks: Sequence[Task]) -> dict[tuple[str, str], Verdict]:
    async def run() -> dict[tuple[str, str], Verdict]:
        async with boxes() as sandboxes:
            grader, found = Grader(sandboxes), {}
            for task in tasks:
                found[task.id, "reference"] = await grader.grade(task, reference_diff(task))
                other = (task.directory / OTHER).read_text(encoding="utf-8")
                found[task.id, "other"] = await grader.grade(task, other)
                found[task.id, "nothing"] = await grader.grade(task, "")
            return found

    return asyncio.run(run())


def tried(boxes: Boxes, cheats: Iterable[Cheat], tasks: Sequence[Task]) -> list[Attempt]:
    async def run() -> list[Attempt]:
        async with boxes() as sandboxes:
            return await try_cheats(cheats, tasks, Grader(sandboxes))

    return asyncio.run(run())
