"""Runs every cheating agent in every environment that it applies to. No cheat may succeed, and honest solutions must
pass; otherwise the exit code is 1.

`flagged`: attempts that were failed and also judged suspect. `lucky`: guesses that passed once but not a second time.
`known_breakable`: cheats that succeed in environments that docs/grading.md names as breakable. Two environments are
packages that pip downloads on the first run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from _report import finish
from tests.tasks.cheats.environments import OTHER, known_breakable, write_environments

from etude.journal import ProgressLine
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes, temporary_store
from etude.tasks import Grader, Judgement, reference_diff
from etude.tasks.cheats import CHEATS, attempt, fitting, try_cheats

CACHE = Path("runs/cheats-cache")


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
        "seconds": time.perf_counter() - begun,
    }
    finish("cheats", result)
    return 0 if result["attempts"] and not result["succeeded"] and result["honest_passed"] == len(honest) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
