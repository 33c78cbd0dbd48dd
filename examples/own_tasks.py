"""Bring your own tasks: a source makes Harbor task directories; the gate, the grader and the rollouts do the rest.

Run: .venv/bin/python examples/own_tasks.py. One damaged line per task, hidden cases that the agent never sees. The
split is a hash of the family's name, so a source must own families of every split that it is asked for.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from etude.harness.editing.diff import unified_diff
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.tasks import (
    Case,
    GateResult,
    Split,
    Task,
    TaskLimits,
    gate,
    make_tasks,
    open_source,
    register_source,
    split_of,
)
from etude.tasks.cases import dump_cases

FAMILIES = [f"add_{number}" for number in range(2, 40)]


class AddSource:
    name = "adding"
    version = 1

    def make(self, split: Split, index: int, seed: int, directory: Path) -> tuple[Task, Mapping[str, bytes]]:
        own = [family for family in FAMILIES if split_of(family) is split]
        family = own[index % len(own)]
        amount = int(family.removeprefix("add_"))
        right = f"# x plus {amount}\ndef {family}(x):\n    return x + {amount}\n"
        wrong = right.replace("x +", "x -")
        cases = [Case(f"{x}", "adder", family, (x,), str(x + amount)) for x in (0, 5, seed + index)]
        task = Task(
            f"{self.name}-{split}-{index:05d}",
            f"fix {family} in adder.py",
            "debugging",
            split,
            family,
            "op",
            directory,
            TaskLimits(verifier_seconds=10.0),
            {"source": self.name, "version": self.version, "seed": seed},
        )
        files = {
            "environment/repo/adder.py": wrong.encode(),
            "tests/cases.json": dump_cases(cases),
            "solution/patch.diff": unified_diff({"adder.py": wrong.encode()}, {"adder.py": right.encode()}).encode(),
        }
        return task, files


async def main(folder: Path) -> list[GateResult]:
    register_source(AddSource.name, AddSource)
    tasks = make_tasks(open_source(AddSource.name), Split.TRAIN, 3, 1, folder / "tasks")
    sandboxes = open_sandboxes(SandboxRecipe(), folder / "boxes")
    try:
        return [await gate(task, sandboxes) for task in tasks]
    finally:
        await sandboxes.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for result in asyncio.run(main(Path(place))):
            print(result.task, "may be used" if result.survived else result.reasons)
