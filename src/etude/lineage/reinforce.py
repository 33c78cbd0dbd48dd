"""The RL stage, its evaluations on the dev split, and the one evaluation of the test split at the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from etude.cluster import Supervised
from etude.engine.open import engine_service
from etude.journal import RunPaths, append_rows, drop_torn_line, read_metrics, write_atomically
from etude.lineage.context import RunContext
from etude.lineage.prepare import require_held_out, usable_tasks
from etude.lineage.state import LineageError
from etude.lineage.summary import one_edit
from etude.model import begin_adapters, compute_with, load_hf, restore, save_trained, serve
from etude.recipe import Recipe
from etude.recipe.acting import EvaluationRecipe
from etude.rl import Crew, RlRun, dismiss, evaluated_steps, gather_crew
from etude.rollout import RolloutJob, RolloutResult, evaluate
from etude.tasks import Split
from etude.weights import CorruptVersion, MissingVersion, WeightStore
from etude.weights.torch_bridge import into_module


async def run_rl(context: RunContext) -> dict[str, Any]:
    """Run RL, then the evaluations on dev that the recipe postpones (rl.evaluate_after). RL's result is written to
    rl/ended.json first, so a run killed during these evaluations resumes with them only."""
    recipe, paths = context.recipe, context.paths
    on_dev = recipe.evaluation.model_copy(update={"samples": recipe.rl.evaluate_samples})
    ended = paths.rl / "ended.json"
    if not ended.exists():
        result = await _learn(context, on_dev)
        write_atomically(ended, json.dumps(result).encode())
    await asyncio.to_thread(shutil.rmtree, paths.checkpoints("rl"), ignore_errors=True)
    if recipe.rl.evaluate_after:
        for step in evaluated_steps(recipe.rl):
            if not _is_evaluated(paths, step):
                await _evaluate_version(context, on_dev, step)
    found: dict[str, Any] = json.loads(ended.read_text(encoding="utf-8"))
    return found


async def _learn(context: RunContext, on_dev: EvaluationRecipe) -> dict[str, Any]:
    recipe, paths = context.recipe, context.paths
    await asyncio.to_thread(require_held_out, context)
    prompts = _prompts(context)
    metrics = paths.metrics("rl")
    metrics.parent.mkdir(parents=True, exist_ok=True)
    drop_torn_line(metrics)
    cluster, fleet = await context.cluster(), await context.fleet()
    crew = await gather_crew(recipe, paths, context.compute(), cluster, context.journal, fleet)
    begun = time.monotonic() - max((row.get("elapsed", 0.0) for row in read_metrics(metrics)), default=0.0)

    def update(values: dict[str, Any]) -> None:
        # `elapsed` adds up over sessions: work that a killed session did after its last step is repeated and counts
        # once. Evaluations for which training waits are not part of it.
        append_rows(metrics, [values | {"elapsed": time.monotonic() - begun}])
        context.screen.update("rl", values)

    async def evaluate_dev(crew: Crew, step: int) -> None:
        nonlocal begun
        if crew.evaluator is None:
            return
        asked = time.monotonic()
        if not _is_evaluated(paths, step):
            await _evaluate(context, crew.evaluator, on_dev, Split.DEV, dev_evaluation(step))
        if step == 0 or recipe.rl.mode == "sync":
            begun += time.monotonic() - asked

    try:
        context.screen.update("rl", {"step": 0, "total": recipe.rl.steps})
        run = RlRun(recipe, paths, crew, context.journal, prompts, update=update, evaluate=evaluate_dev)
        await run.run()
        await run.export()
        worker = [await w.call("stats", deadline=recipe.cluster.call_seconds) for w in crew.workers]
    finally:
        await crew.dismiss()
    machine = run.machine
    rounded = {"precision": str(recipe.precision)} if recipe.precision.rounds else {}
    return {
        **rounded,
        "steps": machine.trained,
        "consumed": [list(groups) for groups in machine.consumed],
        "infra_errors": machine.lost,
        "masked": machine.masked,
        "workers": worker,
    }


def dev_evaluation(step: int) -> str:
    return f"dev-step-{step:06d}"


def _is_evaluated(paths: RunPaths, step: int) -> bool:
    """Whether the dev evaluation of this step is finished: an evaluation writes its summary.json last."""
    return (paths.evaluation(dev_evaluation(step)) / "summary.json").exists()


async def _evaluate_version(context: RunContext, asked: EvaluationRecipe, version: int) -> None:
    """Evaluate one published weight version on dev. Skip a damaged or missing one: a point missing from the curve is
    better than a failed run."""
    paths, name = context.paths, str(version)
    context.screen.note(f"on dev with the weights of step {version}")
    aside = paths.model("rl").with_name(f"model-{version:06d}")
    try:
        model = paths.model("rl" if version else context.recipe.before("rl"))
        if version not in (0, context.recipe.rl.steps):
            store = context.recipe.weights.place(paths.weights)
            model = await asyncio.to_thread(_save_version, context, WeightStore(store), version, aside)
        async with _serving(context, name, model, Split.DEV, version) as (engine, worker):
            await engine.run_watched(_evaluate(context, worker, asked, Split.DEV, dev_evaluation(version)), ask="stats")
    except (CorruptVersion, MissingVersion) as error:
        context.journal.event("version_damaged", version=version, reason=str(error))
        context.screen.note(f"left out: {error}")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _save_version(context: RunContext, store: WeightStore, version: int, folder: Path) -> Path:
    """Write a published weight version as a checkpoint for an engine that is to serve exactly this version. From the
    store, an engine would serve the latest version after a restart."""
    recipe, dtype = context.recipe, context.compute().dtype
    model = begin_adapters(load_hf(context.paths.model(recipe.before("rl")), dtype), recipe.lora, dtype=dtype)
    compute_with(model, recipe.precision)
    serve(model)
    into_module(model, store.read(version))
    restore(model)
    # Saving folds the embedding's scale into its weights, which is exact only in a wider dtype.
    save_trained(model.float(), folder, context.paths.model("base"), context.paths.root)
    return folder


async def evaluate_test(context: RunContext) -> dict[str, Any]:
    """Evaluate the models of the last training stage and of the one before it on the same test tasks. No other stage
    evaluates on test."""
    await asyncio.to_thread(require_held_out, context)
    results: dict[str, Any] = {}
    stages = context.recipe.evaluated
    recipe = context.recipe.evaluation
    passes: list[tuple[int | None, EvaluationRecipe]] = [(None, recipe)]
    if recipe.one_edit:
        passes.append((1, recipe.model_copy(update={"samples": recipe.one_edit})))
    tries = [one.samples + one.greedy for _, one in passes]
    finished = 0

    def progress(done: int, total: int) -> None:
        tasks = total // tries[len(results) % len(passes)]
        whole = len(stages) * tasks * sum(tries)
        context.screen.update("evaluate", {"step": finished * tasks + done, "total": whole})

    for stage in stages:
        async with _serving(context, stage, context.paths.model(stage), Split.TEST) as (engine, worker):
            for (cap, asked), each in zip(passes, tries, strict=True):
                name = stage if cap is None else one_edit(stage)
                work = _evaluate(context, worker, asked, Split.TEST, f"test-{name}", progress, max_edits=cap)
                results[name] = await engine.run_watched(work, ask="stats")
                finished += each
    return results


@asynccontextmanager
async def _serving(
    context: RunContext, name: str, model: Path, split: Split, version: int = 0
) -> AsyncIterator[tuple[Supervised, Supervised]]:
    """Start an engine that serves `model`, and a worker that may read only tasks of `split`. Stop both at the end."""
    engine = await start_engine(context, f"engine-{name}", model, version=version)
    workers: list[Supervised] = []
    try:
        workers.append(await start_worker(context, engine, f"evaluator-{name}", (split.value,)))
        yield engine, workers[0]
    finally:
        await dismiss(engine, boxed=workers)


async def start_engine(
    context: RunContext, name: str, model: Path, store: str | None = None, version: int = 0
) -> Supervised:
    """Start an engine that serves a finished model as weight version `version`. With `store`, it can load newer
    versions. By default it uses one thread (engine.threads): sandboxes and grading need cores too, and were slower when
    the engine of a small model used all."""
    recipe, compute = context.recipe, context.compute()
    service, arguments = engine_service(
        model,
        recipe.engine,
        dtype=compute.dtype_name,
        threads=recipe.engine.threads or compute.threads,
        store=store,
        version=version,
        precision=recipe.precision,
        lora=recipe.lora if store else None,
        device=compute.device,
    )
    return await context.start(name, service, *arguments)


async def start_worker(context: RunContext, engine: Supervised, name: str, splits: tuple[str, ...]) -> Supervised:
    return await context.start(
        name,
        "etude.rollout.worker:RolloutWorker",
        str(context.paths.root),
        _free_running(context.recipe).model_dump(mode="json", by_alias=True),
        engine.remote,
        splits,
        name,
        await context.fleet(),
    )


def rollouts_of(context: RunContext, worker: Supervised) -> Callable[[RolloutJob], Awaitable[RolloutResult]]:
    """Return a function that runs one rollout on this worker, and repeats it if the worker dies."""

    async def rollout(job: RolloutJob) -> RolloutResult:
        result: RolloutResult = await worker.call("rollout", job, deadline=context.recipe.harness.wall_seconds * 2)
        return result

    return rollout


def _free_running(recipe: Recipe) -> Recipe:
    """Return the recipe without lockstep (rl.mode = "sync"), which evaluations outside RL never use."""
    return recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"mode": "async"})})


async def _evaluate(
    context: RunContext,
    worker: Supervised,
    recipe: EvaluationRecipe,
    split: Split,
    name: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
    max_edits: int | None = None,
) -> dict[str, Any]:
    evaluation = await evaluate(
        usable_tasks(context, split),
        rollouts_of(context, worker),
        recipe,
        context.paths.evaluation(name),
        name=name,
        split=split,
        seed=context.recipe.seed,
        journal=context.journal,
        max_edits=max_edits,
        first_edits=max_edits is None,
        progress=progress,
    )
    summary = evaluation.summary
    return {"tasks": summary.tasks, "errors": summary.errors, "touch": summary.touch}


def _prompts(context: RunContext) -> list[str]:
    """Return the ids of the train tasks that RL uses, each at most once, in an order that only the seed determines."""
    recipe = context.recipe
    names = sorted(task.id for task in usable_tasks(context, Split.TRAIN))
    needed = recipe.rl.steps * recipe.rl.prompts_per_step
    if len(names) < needed:
        raise LineageError(
            f"RL needs {needed} prompts (rl.steps x rl.prompts_per_step), each used once; "
            f"there are {len(names)} train tasks: raise tasks.train"
        )
    order = np.random.default_rng(recipe.seed).permutation(len(names))
    return [names[place] for place in order[:needed]]
