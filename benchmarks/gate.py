"""Generates and gates a thousand tasks, mixed from every source, with all cheats tried. Then gates the survivors again,
in a new process with a new store and the clock set 400 days later.

`minutes` covers generating and gating. TASKS=60 makes fewer tasks. FOLDER=... keeps the tasks and verdicts there, also
after Ctrl-C, and the next call with the same folder resumes; `minutes` then covers only the remaining work.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from _report import finish

from etude.journal import ProgressLine
from etude.recipe.acting import SandboxRecipe
from etude.sandbox import open_sandboxes
from etude.tasks import (
    Environments,
    GateResult,
    Grader,
    Split,
    Task,
    by_source,
    gate_tasks,
    make_tasks,
    open_source,
    read_evidence,
    revalidate,
)
from etude.tasks.cheats import CHEATS, cheats_for_gate
from etude.tasks.conditions import days_later
from etude.tasks.sources import source_names

TASKS = int(os.environ.get("TASKS", "1000"))
SEED = 1


def make(folder: Path) -> list[Task]:
    """Generate TASKS tasks, the same number from each source, interleaved."""
    names = source_names()
    share, rest = divmod(TASKS, len(names))
    made = [
        make_tasks(open_source(name), Split.TRAIN, share + (place < rest), SEED, folder / name)
        for place, name in enumerate(names)
    ]
    return [task for row in zip(*made, strict=False) for task in row] + [
        task for tasks in made for task in tasks[min(map(len, made)) :]
    ]


async def gate_all(tasks: list[Task], place: Path, *, again: bool) -> dict[str, GateResult]:
    sandboxes = open_sandboxes(SandboxRecipe(), place / "boxes")
    grader = Grader(sandboxes, environments=Environments(sandboxes, place / "environments"))
    evidence = place / "gate.jsonl"
    try:
        with ProgressLine("gate again" if again else "gate", len(tasks), unit="tasks") as line:

            def shown(done: int, _: int) -> None:
                line.update(done)

            if again:
                return await revalidate(tasks, sandboxes, evidence, grader=grader, progress=shown)
            cheats = cheats_for_gate(grader, CHEATS.values())
            return await gate_tasks(tasks, sandboxes, evidence, grader=grader, cheats=cheats, progress=shown)
    finally:
        await sandboxes.close()


def first(folder: Path) -> dict[str, Any]:
    begun = time.monotonic()
    tasks = make(folder / "tasks")
    making = time.monotonic() - begun
    results = asyncio.run(gate_all(tasks, folder / "store", again=False))
    minutes = (time.monotonic() - begun) / 60
    for result in results.values():
        if not result.survived:
            print(f"{result.task}: {result.outcome}: {'; '.join(result.reasons)[:300]}", file=sys.stderr)
    sources = by_source(results.values())
    seconds = {name: median(r.seconds for r in results.values() if r.source == name) for name in sources}
    survived = [result for result in results.values() if result.survived]
    return {
        "tasks": len(tasks),
        "minutes": minutes,
        "making_minutes": making / 60,
        "survived": len(survived),
        "sealed": sum(result.sealed for result in survived),
        "open": {name: counts["open"] for name, counts in sources.items()},
        "p50_seconds": {name: round(spent, 2) for name, spent in seconds.items()},
        "by_source": sources,
    }


def second(folder: Path, survived: int) -> dict[str, Any]:
    """Gate the surviving tasks again, in a separate process with its own store."""
    begun = time.monotonic()
    command = [sys.executable, __file__, "--again", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = dict(json.loads(done.stdout.splitlines()[-1]))
    if found["again"] != survived:
        raise SystemExit(f"{survived} tasks survived, but {found['again']} were gated again")
    return {**found, "again_minutes": (time.monotonic() - begun) / 60}


def again(folder: Path) -> None:
    last = {result.task: result for result in read_evidence(folder / "store/gate.jsonl")}
    tasks = [task for task in make(folder / "tasks") if task.id in last and last[task.id].survived]
    results = asyncio.run(gate_all(tasks, folder / "again", again=True))
    for result in results.values():
        if not result.survived:
            print(f"{result.task}: again: {result.outcome}: {'; '.join(result.reasons)[:300]}", file=sys.stderr)
    survived = sum(result.survived for result in results.values())
    stood = sum(result.runs[0].conditions == days_later(0, "").name for result in results.values() if result.runs)
    other = sum(result.survived and any(run.set_aside for run in result.runs) for result in results.values())
    share = survived / max(1, len(results))
    print(json.dumps({"again": len(results), "revalidated": share, "by_other_way": other, "clock_not_moved": stood}))


def main() -> None:
    kept = os.environ.get("FOLDER")
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory(prefix="etude-gate-") as place:
        finish("gate", measured(Path(place)))


def measured(folder: Path) -> dict[str, Any]:
    found = first(folder)
    return {**found, **second(folder, found["survived"])}


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["--again"]:
            again(Path(sys.argv[2]))
        else:
            main()
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("stopped; if FOLDER was given, tasks and verdicts are kept there and the same command resumes")
