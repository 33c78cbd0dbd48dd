"""A thousand gradings leave nothing behind: no process, mount, cgroup, file, descriptor or memory."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import psutil
import pytest

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.tasks import Grader, Judgement, Task, reference_diff

from .test_grader import replacing

WARM, GRADINGS, AT_ONCE = 60, 1000, 4
DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nos._exit(0)"


def left(store: Path) -> dict[str, int]:
    own = psutil.Process()
    cgroups = Path("/sys/fs/cgroup")
    return {
        "processes": len(own.children(recursive=True)),
        "mounts": sum(str(store) in line for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": sum(1 for path in cgroups.rglob(f"etude-{own.pid}-*") if path.is_dir()),
        "files": sum(1 for _ in store.rglob("*")),
        "descriptors": own.num_fds(),
    }


async def settled(store: Path) -> dict[str, int]:
    """Once it stays so for a second: shells are made ahead, and what boxes have written is removed, in idle time."""
    seen, looks = left(store), 0
    while looks < 10:
        await asyncio.sleep(0.1)
        before, seen = seen, left(store)
        looks = looks + 1 if seen == before else 0
    return seen


@pytest.mark.slow
def test_a_thousand_gradings_leave_nothing_behind(train_tasks: list[Task], tmp_path: Path) -> None:
    store = tmp_path / "boxes"

    async def run() -> None:
        sandboxes = open_sandboxes(SandboxRecipe(), store)
        grader = Grader(sandboxes)
        turn = asyncio.Semaphore(AT_ONCE)

        async def grade(number: int) -> None:
            """Solutions, nothing, and code that leaves a daemon and ends its verifier."""
            task = train_tasks[number % 8]
            diff = (reference_diff(task), "", replacing(task, DAEMON))[number % 3]
            async with turn:
                verdict = await grader.grade(task, diff, fresh=True)
            assert verdict.judgement is (Judgement.FAIL if number % 3 else Judgement.PASS), verdict

        try:
            await asyncio.gather(*map(grade, range(WARM)))
            gc.collect()
            before, memory = await settled(store), psutil.Process().memory_info().rss
            await asyncio.gather(*map(grade, range(GRADINGS)))
            gc.collect()
            assert await settled(store) == before
            assert psutil.Process().memory_info().rss - memory < 16 << 20
            assert grader.stats.graded == WARM + GRADINGS
        finally:
            await sandboxes.close()

    alive = len(psutil.Process().children(recursive=True))
    asyncio.run(run())
    assert len(psutil.Process().children(recursive=True)) == alive
