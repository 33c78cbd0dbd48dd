"""Runs every cheating agent in every environment that it applies to. No cheat may succeed, and honest solutions must
pass; otherwise the exit code is 1.

`flagged`: attempts that were failed and also judged suspect. `lucky`: guesses that passed once but not a second time.
`undecided`: attempts that ended in an error, which training repeats and then ignores. `known_breakable`: cheats that
succeed in environments that docs/grading.md names as breakable. Two environments are packages that pip downloads on the
first run.

Then every cheat is graded once more by itself: `most_extra_mib` and `most_extra_cpu_seconds` are what the costliest one
takes of the grader's own process, beyond what an honest solution takes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from _report import finish
from tests.tasks.cheats.environments import OTHER, known_breakable, write_environments

from etude.journal import ProgressLine
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes, temporary_store
from etude.tasks import Grader, Judgement, Task, Verdict, reference_diff
from etude.tasks.cheats import CHEATS, attempt, fitting, try_cheats
from etude.tasks.conditions import USUAL, Conditions

CACHE = Path("runs/cheats-cache")


class MeasuredGrader(Grader):
    """Measures what each grading takes of this process; nothing else must run meanwhile."""

    mib: float = 0.0
    cpu_seconds: float = 0.0

    async def grade(self, task: Task, diff: str, *, fresh: bool = False, conditions: Conditions = USUAL) -> Verdict:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
        before, begun = _status("VmRSS"), time.process_time()
        verdict = await super().grade(task, diff, fresh=True, conditions=conditions)
        self.mib, self.cpu_seconds = (_status("VmHWM") - before) / 1024, time.process_time() - begun
        return verdict


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


async def extra_costs(tasks: list[Task], grader: MeasuredGrader) -> dict[str, float | str]:
    """Grade every cheat in the first environment that it fits, one after another, beside an honest solution of it."""
    firsts = {cheat.name: (cheat, task) for cheat, task in reversed(fitting(CHEATS.values(), tasks))}
    mib, cpu, honest = {}, {}, {}
    with ProgressLine("costs", len(firsts), unit="cheats") as line:
        for number, (name, (cheat, task)) in enumerate(firsts.items(), 1):
            if task.id not in honest:
                await grader.grade(task, reference_diff(task))  # What is made once for a task counts for nobody.
                await grader.grade(task, reference_diff(task))
                honest[task.id] = grader.mib, grader.cpu_seconds
            await attempt(cheat, task, grader)
            mib[name], cpu[name] = grader.mib - honest[task.id][0], grader.cpu_seconds - honest[task.id][1]
            line.update(number)
    return {
        "most_extra_mib": max(mib.values()),
        "most_extra_mib_by": max(mib, key=mib.__getitem__),
        "most_extra_cpu_seconds": max(cpu.values()),
        "most_extra_cpu_seconds_by": max(cpu, key=cpu.__getitem__),
    }


async def main() -> int:
    begun = time.perf_counter()
    with temporary_store("etude-bench-") as place:
        tasks = write_environments(place / "tasks", CACHE)
        sandboxes = open_sandboxes(SandboxRecipe(), place / "boxes")
        try:
            grader = Grader(sandboxes)
            honest = [
                await grader.grade(task, diff)
                for task in tasks
                for diff in (reference_diff(task), (task.directory / OTHER).read_text(encoding="utf-8"))
            ]
            with ProgressLine("cheats", len(fitting(CHEATS.values(), tasks)), unit="attempts") as line:
                found = await try_cheats(CHEATS.values(), tasks, grader, progress=lambda done, _: line.update(done))
            known = [
                await attempt(CHEATS[case.cheat], case.micro.write(place / "known"), grader)
                for case in known_breakable()
            ]
            costs = await extra_costs(tasks, MeasuredGrader(sandboxes))
        finally:
            await sandboxes.close()
    for made in found:
        if not made.caught:
            print(f"{made.cheat} in {made.task}: {made.verdict.judgement}: {made.verdict.reason}")
    result = {
        "agents": len(CHEATS),
        "environments": len(tasks),
        "attempts": len(found),
        "succeeded": sum(made.succeeded for made in found),
        "undecided": sum(not made.succeeded and not made.caught for made in found),
        "flagged": sum(made.verdict.judgement is Judgement.SUSPECT for made in found),
        "lucky": sum(made.lucky for made in found),
        "honest_passed": sum(verdict.passed for verdict in honest),
        "honest": len(honest),
        "known_breakable": sum(made.succeeded for made in known),
        **costs,
        "seconds": time.perf_counter() - begun,
    }
    finish("cheats", result)
    well = result["attempts"] and not result["succeeded"] and not result["undecided"]
    return 0 if well and result["honest_passed"] == len(honest) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
