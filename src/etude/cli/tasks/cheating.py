"""etude tasks cheat: runs scripted agents that cheat instead of solving, and reports which tasks they pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

from etude.cli.errors import FAILED
from etude.cli.tasks.find_tasks import named_of_every_split, opened_grader
from etude.cli.wording import count, table
from etude.journal import ProgressLine
from etude.tasks import Task, TaskError
from etude.tasks.cheats import CHEATS, Attempt, Cheat, fitting, try_cheats


def cheat_command(paths: list[Path], only: list[str], egress: str, store: Path) -> int:
    if not paths:
        print(table([(cheat.name, cheat.exploits) for cheat in CHEATS.values()]))
        return 0
    cheats = [_named(name) for name in only] or list(CHEATS.values())
    tasks = named_of_every_split(paths)
    found = asyncio.run(_try(cheats, tasks, egress, store))
    for made in found:
        if not made.caught:
            print(f"{made.verdict.judgement.value:<5} {made.task}: {made.cheat}: {made.verdict.reason}")
    succeeded = sum(made.succeeded for made in found)
    undecided = sum(not made.succeeded and not made.caught for made in found)
    print(f"{count(len(found), 'attempt')} on {count(len(tasks), 'task')}, {succeeded or 'none'} succeeded", end="")
    print(f", {undecided} could not be graded" if undecided else "")
    return FAILED if succeeded or undecided else 0


async def _try(cheats: list[Cheat], tasks: list[Task], egress: str, store: Path) -> list[Attempt]:
    async with opened_grader(store, egress) as grader:
        with ProgressLine("cheat", len(fitting(cheats, tasks)), unit="attempts") as line:
            return await try_cheats(cheats, tasks, grader, progress=lambda done, _: line.update(done))


def _named(name: str) -> Cheat:
    if name not in CHEATS:
        raise TaskError(f"expected the name of a cheat, found {name!r}: `etude tasks cheat` lists them")
    return CHEATS[name]
