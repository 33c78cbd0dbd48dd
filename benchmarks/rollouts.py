"""Graded rollouts per second of the tiny recipe: the SFT model on train tasks, including boxes and sealed grading.

`per_second` is measured first, with sampling alone: engine and boxes have every core. Then RL runs for some steps, with
the trainer beside the engine. Reported are which service used the cores (shares of all CPU time), how many cores were
busy on average, and who waited for whom while a core was idle (shares of all core-seconds). Both parts are measured
after a warm-up. No peer grades such tasks in such boxes. The stages before RL run first, once, or are taken over from a
run of the quick start.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from _report import finish

from etude.cluster import Supervised
from etude.journal import Journal, RunPaths, read_journal, wait_spans
from etude.lineage import LineageState
from etude.lineage.context import RunContext
from etude.lineage.prepare import usable_tasks
from etude.lineage.reinforce import start_engine, start_worker
from etude.lineage.screen import Screen
from etude.recipe import load_recipe
from etude.rl import Crew, Reading, RlRun, dismiss, gather_crew, read_cores
from etude.rollout import RolloutJob, RolloutResult
from etude.tasks import Split
from etude.view.cores import attributed, samples_of, summed

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "runs" / "rollouts"
WARM, MEASURED = 400, 2400
"""Rollouts before the clock starts, and rollouts that are timed."""
STEPS, WARM_STEPS = 14, 4


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
    """Measure sampling alone: groups of rollouts per train task as in RL, with as many in flight as the recipe sets."""
    rl = context.recipe.rl
    engine = await start_engine(context, "engine-alone", context.paths.model("sft"))
    worker = await start_worker(context, engine, "worker-alone", ("train",))
    jobs, done = _jobs(context), 0
    pids = {"engine": _pid(engine), "worker": _pid(worker)}
    readings: dict[int, Reading] = {}

    async def pull() -> None:
        nonlocal done
        for job in jobs:
            if done >= WARM + MEASURED:
                return
            result: RolloutResult = await worker.call("rollout", job, deadline=600.0)
            assert not result.failed_by_us, result.verdict.reason
            done += 1
            if done in (WARM, WARM + MEASURED):
                readings[done] = _read(pids)

    try:
        await asyncio.gather(*(pull() for _ in range(rl.workers * rl.rollouts_per_worker)))
        shared = await worker.call("stats", deadline=60.0)
    finally:
        await dismiss(engine, boxed=[worker])
    seconds, used = _between(readings[WARM], readings[WARM + MEASURED])
    return {
        "per_second": MEASURED / seconds,
        "alone_engine_cores": used["engine"] / seconds,
        "alone_worker_cores": used["worker"] / seconds,
        "commands_shared": shared["commands_shared"] / (shared["commands_shared"] + shared["commands_run"]),
        "gradings_shared": shared["gradings_shared"] / (shared["gradings_shared"] + shared["gradings_run"]),
    }


def _jobs(context: RunContext) -> Iterator[RolloutJob]:
    names = sorted(task.id for task in usable_tasks(context, Split.TRAIN))
    for group in count():
        for member in range(context.recipe.rl.group):
            yield RolloutJob(names[group % len(names)], Split.TRAIN, f"bench-{group}", member, group * 1009 + member)


async def _reinforcing(context: RunContext) -> dict[str, Any]:
    """Measure RL's own loop, without its evaluations."""
    steps = {"steps": STEPS, "evaluate_every": 0}
    recipe = context.recipe.model_copy(update={"rl": context.recipe.rl.model_copy(update=steps)})
    for leftover in (context.paths.rl, context.paths.checkpoints("rl"), context.paths.weights):
        shutil.rmtree(leftover, ignore_errors=True)  # of an earlier measurement
    crew = await gather_crew(recipe, context.paths, context.compute(), await context.cluster(), context.journal)
    services = {"engine": crew.engine, "worker": crew.workers[0], "trainer": crew.trainer}
    pids = {name: _pid(service) for name, service in services.items()}
    readings: dict[int, Reading] = {}
    moments: dict[int, float] = {}
    prompts = [task.id for task in usable_tasks(context, Split.TRAIN)]

    def update(row: dict[str, Any]) -> None:
        context.screen.update("rl", row)
        readings[row["step"]], moments[row["step"]] = _read(pids), time.time()

    async def evaluate(crew: Crew, step: int) -> None:
        raise AssertionError("no evaluation was asked for")

    try:
        context.screen.update("rl", {"step": 0, "total": STEPS})
        await RlRun(recipe, context.paths, crew, context.journal, prompts, update=update, evaluate=evaluate).run()
    finally:
        await crew.dismiss()
    # Leave out the last steps: sampling is ahead by max_staleness steps, so nothing is sampled while they train.
    last = STEPS - recipe.rl.max_staleness
    seconds, used = _between(readings[WARM_STEPS], readings[last])
    whole = sum(used.values())
    trained = (last - WARM_STEPS) * recipe.rl.prompts_per_step * recipe.rl.group
    return {
        "per_second_in_rl": trained / seconds,
        "generation_share": used["engine"] / whole,
        "tools_share": used["worker"] / whole,
        "train_share": used["trainer"] / whole,
        "busy_cores": whole / seconds,
        "idle_by": idle_by(context.paths.journal, moments[WARM_STEPS], moments[last]),
    }


def idle_by(journal: Path, begun: float, ended: float) -> dict[str, float]:
    """Idle time of cores by who waited for whom, as shares of all core-seconds between two moments."""
    entries = [entry for entry in read_journal(journal) if entry.kind in ("cores", "wait")]
    samples = [sample for sample in samples_of(entries) if begun < sample.end <= ended]
    whole = summed(attributed(samples, wait_spans(entries)))
    return {name: round(whole.idle[name] / whole.seconds, 4) for name in whole.waits}


def _pid(service: Supervised) -> int:
    assert service.local_pid is not None
    return service.local_pid


def _read(pids: dict[str, int]) -> Reading:
    reading = read_cores(pids)
    assert reading is not None, "cannot tell which process used the cores: /proc is missing"
    return reading


def _between(begun: Reading, ended: Reading) -> tuple[float, dict[str, float]]:
    """Return elapsed seconds and CPU seconds by service between two readings. A service's seconds include its children;
    the driver's include everything else that this process started."""
    return ended.time - begun.time, {name: ended.used[name] - begun.used[name] for name in begun.used}


if __name__ == "__main__":
    main()
