"""Hundreds of gradings leave nothing behind: no process, mount, cgroup, file, descriptor or memory."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import psutil
import pytest

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.tasks import Grader, Judgement, Task, reference_diff

from .test_grader import replacing

pytestmark = pytest.mark.slow

WARM, GRADINGS, AT_ONCE = 60, 400, 4
AHEAD = 2 * (AT_ONCE + 2)
"""Of each of two kinds as many as were asked for at once, and two."""
DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nos._exit(0)"


def made_ahead(process: psutil.Process) -> bool:
    """A box to be: pid 1 of a namespace, but still in its parent's cgroups. How many there are follows the demand."""
    own = Path(f"/proc/{process.pid}")
    try:
        ids = next(line.split()[1:] for line in (own / "status").read_text().splitlines() if line.startswith("NSpid:"))
        return ids[1:] == ["1"] and (own / "cgroup").read_text() == Path(f"/proc/{process.ppid()}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return False  # It has ended meanwhile; the next look does not see it.


def left(store: Path, theirs: list[psutil.Process]) -> dict[str, int]:
    """`theirs`: children with the boxes of other tests."""
    own = psutil.Process()
    children = [one for child in own.children() if child not in theirs for one in (child, *child.children(True))]
    ahead = sum(map(made_ahead, children))
    assert ahead <= AHEAD, f"{ahead} shells stand ready"
    # Unlike rglob, os.walk goes on where a folder has gone meanwhile.
    cgroups = [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    return {
        "processes": len(children) - ahead,
        "mounts": sum(str(store) in line for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": sum(name.startswith(f"etude-{own.pid}-") for name in cgroups),
        "files": sum(len(folders) + len(files) for _, folders, files in os.walk(store)),
        "descriptors": own.num_fds(),
    }


async def settled(store: Path, theirs: list[psutil.Process], wanted: dict[str, int] | None = None) -> dict[str, int]:
    """Once it stays so for three seconds, or is what is wanted: shells are made ahead, and what boxes have written is
    removed, in idle time, of which a busy machine has little."""
    seen, looks = left(store, theirs), 0
    while looks < (30 if wanted is None else 600) and seen != wanted:
        await asyncio.sleep(0.1)
        before, seen = seen, left(store, theirs)
        looks = looks + 1 if seen == before else 0
    return seen


def test_hundreds_of_gradings_leave_nothing_behind(train_tasks: list[Task], tmp_path: Path) -> None:
    graded = [
        given
        for task in train_tasks[:8]
        for given in (
            (task, reference_diff(task), Judgement.PASS),
            (task, "", Judgement.FAIL),
            (task, replacing(task, DAEMON), Judgement.FAIL),
        )
    ]
    store = tmp_path / "boxes"

    async def run() -> None:
        sandboxes = open_sandboxes(SandboxRecipe(), store)
        grader = Grader(sandboxes)
        turn = asyncio.Semaphore(AT_ONCE)

        async def grade(number: int) -> None:
            task, diff, judgement = graded[number % len(graded)]
            async with turn:
                verdict = await grader.grade(task, diff, fresh=True)
            assert verdict.judgement is judgement, verdict

        try:
            await asyncio.gather(*map(grade, range(WARM)))
            gc.collect()
            before, memory = await settled(store, theirs), psutil.Process().memory_info().rss
            await asyncio.gather(*map(grade, range(GRADINGS)))
            gc.collect()
            assert await settled(store, theirs, before) == before
            assert psutil.Process().memory_info().rss - memory < 8 << 20
            assert grader.stats.graded == WARM + GRADINGS
        finally:
            await sandboxes.close()

    theirs = psutil.Process().children()
    asyncio.run(run())
    assert psutil.Process().children() == theirs
