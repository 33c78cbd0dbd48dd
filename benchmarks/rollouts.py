"""Graded rollouts per second of the tiny recipe: the agent of SFT on train tasks, boxes and sealed grading included.

First sampling alone, training apart, with every core for engine and boxes: `per_second`. Then RL itself, trainer beside
the engine, for some steps: who used the cores, as shares of all CPU time, and how many were busy on average. Both are
taken once warm. There is no peer that grades such tasks in such boxes. What comes before RL is made first, once, or
taken over from a run of the quick start.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from _report import finish

from etude.journal import Journal, RunPaths
from etude.lineage import LineageState
from etude.lineage.context import RunContext
from etude.lineage.prepare import usable_tasks
from etude.lineage.reinforce import start_engine, start_worker
from etude.lineage.screen import Screen
from etude.recipe import load_recipe
from etude.rl import Crew, RlRun, dismiss, gather_crew
from etude.rollout import RolloutJob, RolloutResult
from etude.tasks import Split

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "runs" / "rollouts"
WARM, MEASURED = 400, 2400
"""Rollouts before the clock starts, and under it."""
STEPS, WARM_STEPS = 14, 4


@dataclass(slots=True)
class Meter:
    """CPU seconds of services, each with its children, and of the whole: this process and all that it started."""

    pids: dict[str, int]

    def read(self) -> dict[str, float]:
        found = {name: _cpu_seconds(psutil.Process(pid)) for name, pid in self.pids.items()}
        return {**found, "all": _cpu_seconds(psutil.Process()), "wall": time.monotonic()}


def main() -> None:
    command = [sys.executable, "-m", "etude.cli.main", "run", str(ROOT / "recipes" / "tiny.toml"), "--until", "sft"]
    places = ["--runs", str(RUN.parent), "--name", RUN.name, "--reuse", str(RUN.parent)]
    subprocess.run([*command, *places], check=True, stdout=sys.stderr)
    finish("rollouts", asyncio.run(_measure()))


async def _measure() -> dict[str, Any]:
    paths = RunPaths(RUN)
    recipe = load_recipe(paths.recipe)
    journal = Journal(paths.journal, "rollouts")
    context = RunContext(recipe, paths, LineageState.load(paths.lineage), journal, Screen(journal))
    try:
        return {**await _sampling(context), **await _reinforcing(context)}
    finally:
        await context.close()
        journal.close()


async def _sampling(context: RunContext) -> dict[str, Any]:
    """Groups of train tasks, as in RL, as many at a time as the recipe has in flight."""
    rl = context.recipe.rl
    engine = await start_engine(context, "engine-alone", context.paths.model("sft"))
    worker = await start_worker(context, engine, "worker-alone", ("train",))
    jobs, done = _jobs(context), 0
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    meter = Meter({name: await _pid(service) for name, service in (("engine", engine), ("worker", worker))})

    async def pull() -> None:
        nonlocal done, begun, ended
        for job in jobs:
            if done >= WARM + MEASURED:
                return
            result: RolloutResult = await worker.call("rollout", job, deadline=600.0)
            assert not result.failed_by_us, result.verdict.reason
            done += 1
            if done == WARM:
                begun = meter.read()
            if done == WARM + MEASURED:
                ended = meter.read()

    try:
        await asyncio.gather(*(pull() for _ in range(rl.workers * rl.rollouts_per_worker)))
        shared = await worker.call("stats", deadline=60.0)
    finally:
        await dismiss(engine, boxed=[worker])
    wall = ended["wall"] - begun["wall"]
    return {
        "per_second": MEASURED / wall,
        "alone_engine_cores": (ended["engine"] - begun["engine"]) / wall,
        "alone_worker_cores": (ended["worker"] - begun["worker"]) / wall,
        "commands_shared": shared["commands_shared"] / (shared["commands_shared"] + shared["commands_run"]),
        "gradings_shared": shared["gradings_shared"] / (shared["gradings_shared"] + shared["gradings_run"]),
    }


def _jobs(context: RunContext) -> Iterator[RolloutJob]:
    names = sorted(task.id for task in usable_tasks(context, Split.TRAIN))
    for group in count():
        for member in range(context.recipe.rl.group):
            yield RolloutJob(names[group % len(names)], Split.TRAIN, f"bench-{group}", member, group * 1009 + member)


async def _reinforcing(context: RunContext) -> dict[str, Any]:
    """RL's own loop; its evaluations are left out."""
    steps = {"steps": STEPS, "evaluate_every": 0}
    recipe = context.recipe.model_copy(update={"rl": context.recipe.rl.model_copy(update=steps)})
    for leftover in (context.paths.rl, context.paths.checkpoints("rl"), context.paths.weights):
        shutil.rmtree(leftover, ignore_errors=True)  # of an earlier measurement
    crew = await gather_crew(recipe, context.paths, context.compute(), await context.cluster(), context.journal)
    services = {"engine": crew.engine, "worker": crew.workers[0], "trainer": crew.trainer}
    meter = Meter({name: await _pid(service) for name, service in services.items()})
    readings: dict[int, dict[str, float]] = {}
    prompts = [task.id for task in usable_tasks(context, Split.TRAIN)]

    def update(row: dict[str, Any]) -> None:
        context.screen.update("rl", row)
        readings[row["step"]] = meter.read()

    async def evaluate(crew: Crew, step: int) -> None:
        raise AssertionError("no evaluation was asked for")

    try:
        context.screen.update("rl", {"step": 0, "total": STEPS})
        await RlRun(recipe, context.paths, crew, context.journal, prompts, update=update, evaluate=evaluate).run()
    finally:
        await crew.dismiss()
    # The last steps have nothing to sample beside them: sampling is ahead by as much as staleness allows.
    begun, ended = readings[WARM_STEPS], readings[STEPS - recipe.rl.max_staleness]
    spent = {name: ended[name] - begun[name] for name in begun}
    trained = (STEPS - recipe.rl.max_staleness - WARM_STEPS) * recipe.rl.prompts_per_step * recipe.rl.group
    return {
        "per_second_in_rl": trained / spent["wall"],
        "generation_share": spent["engine"] / spent["all"],
        "tools_share": spent["worker"] / spent["all"],
        "train_share": spent["trainer"] / spent["all"],
        "busy_cores": spent["all"] / spent["wall"],
    }


async def _pid(service: Any) -> int:
    health = await service.remote.health()
    assert health.pid is not None
    return int(health.pid)


def _cpu_seconds(process: psutil.Process) -> float:
    """With its children, those that have ended included."""
    whole = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:  # ended meanwhile: counted with its parent's children
            continue
        whole += times.user + times.system + times.children_user + times.children_system
    return whole


if __name__ == "__main__":
    main()
