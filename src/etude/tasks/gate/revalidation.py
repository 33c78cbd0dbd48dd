"""Re-validation: a task that passed the gate must pass it again, as if on another machine and much later.

The runs use another time zone, language, hash seed, test order and date, and a busy machine. The date is changed by
libfaketime, a library that is preloaded into the programs in the box and shifts the time that they see. Callers use a
new process and a new store (the folder of images and caches), so that nothing but the tasks remains from the first
gating.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from etude.harness.workspaces.result_cache import Memo
from etude.sandbox.contract import BoxSpec, SandboxError, Sandboxes
from etude.tasks.conditions import Conditions, days_later, faketime_library
from etude.tasks.environment import Prepared
from etude.tasks.fresh_box import fresh_box
from etude.tasks.gate.admission import GradingQueue
from etude.tasks.gate.concurrent import examine_all
from etude.tasks.gate.result import GateResult
from etude.tasks.gate.single import Gate
from etude.tasks.grader import Grader
from etude.tasks.task import Task, TaskError

DAYS = 400
EVIDENCE = "evidence/again.json"
_NEAR = 3600


async def revalidate(
    tasks: Sequence[Task],
    sandboxes: Sandboxes,
    evidence: Path,
    *,
    days: int = DAYS,
    grader: Grader | None = None,
    concurrency: int = 4,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, GateResult]:
    """Gate each task once more, with a date that is `days` days later: the empty diff must fail; the reference and all
    other valid solutions must pass. The search for leaks and the cheats are left out.

    The results are written to the file `evidence`, so that an interrupted re-validation can continue. It must not be
    the file of the first gating. If libfaketime is not installed, or has no effect in a task's image, the task's runs
    keep the real date, and their conditions are named "0 days later".
    """
    clock = _Clock(grader or Grader(sandboxes), faketime_library(), days)
    moved: dict[Conditions, list[Task]] = {}
    for task in tasks:
        moved.setdefault(await clock.conditions(task), []).append(task)
    found: dict[str, GateResult] = {}
    for conditions, some in moved.items():

        def report(done: int, _: int, before: int = len(found)) -> None:
            progress(before + done, len(tasks))

        shared = Gate(clock.grader, (conditions,), conditions, scan=False, queue=GradingQueue(concurrency))
        found |= await examine_all(some, shared, evidence, beside=EVIDENCE, progress=report)
    return {task.id: found[task.id] for task in tasks}


@dataclass(slots=True)
class _Clock:
    """Chooses the conditions of each task's runs, by trying once per image whether libfaketime works there: it has no
    effect in images with another C library, for example."""

    grader: Grader
    library: str
    days: int
    _moves: Memo[str, bool] = field(default_factory=lambda: Memo(8192))

    async def conditions(self, task: Task) -> Conditions:
        there, here = days_later(self.days, self.library), days_later(0, "")
        if not self.library:
            return here
        try:
            prepared = await self.grader.environments.prepare(task)

            async def probe() -> tuple[bool, bool]:
                return await self._moved(prepared, there), True

            return there if await self._moves.get("host" if prepared.bare else prepared.image, probe) else here
        except (TaskError, SandboxError, OSError):
            return there  # The examination of the task will report this error.

    async def _moved(self, prepared: Prepared, conditions: Conditions) -> bool:
        spec = BoxSpec(prepared.image, workdir=prepared.workdir, env=conditions.env, name="clock")
        async with fresh_box(self.grader.sandboxes, spec) as box:
            command_output = await box.exec(["date", "-u", "+%s"], timeout=20)
        shown = command_output.stdout.strip()
        return shown.isdigit() and abs(int(shown) - time.time() - 86_400 * self.days) < _NEAR
