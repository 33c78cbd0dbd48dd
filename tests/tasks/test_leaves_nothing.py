"""A thousand gradings leave nothing behind: no process, mount, cgroup, file, descriptor or memory."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.tasks import Grader, Judgement, Task, reference_diff

from .cheats.playing import written
from .test_grader import replacing

pytestmark = pytest.mark.slow

WARM, GRADINGS, AT_ONCE = 60, 1000, 4
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


def left(store: Path) -> dict[str, int]:
    own = psutil.Process()
    children = own.children(recursive=True)
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


async def settled(store: Path, wanted: dict[str, int] | None = None) -> dict[str, int]:
    """Once it stays so for three seconds, or is what is wanted: shells are made ahead, and what boxes have written is
    removed, in idle time, of which a busy machine has little."""
    seen, looks = left(store), 0
    while looks < (30 if wanted is None else 600) and seen != wanted:
        await asyncio.sleep(0.1)
        before, seen = seen, left(store)
        looks = looks + 1 if seen == before else 0
    return seen


def leave_nothing(graded: Sequence[tuple[Task, str, Judgement]], store: Path, *, warm: int, gradings: int) -> None:
    """Each in its turn, again and again."""

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
            await asyncio.gather(*map(grade, range(warm)))
            gc.collect()
            before, memory = await settled(store), psutil.Process().memory_info().rss
            await asyncio.gather(*map(grade, range(gradings)))
            gc.collect()
            assert await settled(store, before) == before
            assert psutil.Process().memory_info().rss - memory < 16 << 20
            assert grader.stats.graded == warm + gradings
        finally:
            await sandboxes.close()

    alive = len(psutil.Process().children(recursive=True))
    asyncio.run(run())
    assert len(psutil.Process().children(recursive=True)) == alive


def test_a_thousand_gradings_leave_nothing_behind(train_tasks: list[Task], tmp_path: Path) -> None:
    """Solutions, nothing, and code that leaves a daemon and ends its verifier."""
    graded = [
        given
        for task in train_tasks[:8]
        for given in (
            (task, reference_diff(task), Judgement.PASS),
            (task, "", Judgement.FAIL),
            (task, replacing(task, DAEMON), Judgement.FAIL),
        )
    ]
    leave_nothing(graded, tmp_path / "boxes", warm=WARM, gradings=GRADINGS)


def test_gradings_of_dockerfiles_leave_nothing_behind(tmp_path: Path) -> None:
    """Of eight builds each: fewer show it as well."""
    (task,) = written(tmp_path, "image-build")
    graded = [(task, reference_diff(task), Judgement.PASS), (task, "", Judgement.FAIL)]
    leave_nothing(graded, tmp_path / "boxes", warm=4, gradings=12)
