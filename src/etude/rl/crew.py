"""The services of an RL run, each in its own process: trainer, engine, environment workers, evaluator.

A service that dies is restarted.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from etude.cluster import Cluster, ClusterError, Supervised, start_supervised
from etude.engine.open import engine_service
from etude.engine.remote import RemoteEngine
from etude.journal import Journal, RunPaths
from etude.recipe import Recipe
from etude.sandbox.fleet import Fleet
from etude.training.compute import Compute

_FAREWELL_SECONDS = 5.0
"""Seconds that a worker gets to close its sandboxes before it is killed."""


@dataclass(slots=True)
class Crew:
    trainer: Supervised
    engine: Supervised
    workers: list[Supervised]
    evaluator: Supervised | None
    """Worker for evaluations on dev; None if nothing is evaluated before the end of RL."""
    rollouts: RemoteEngine
    """Client for the driver's own calls to the engine: opening conversations, swapping weights, reading statistics."""

    async def dismiss(self) -> None:
        await dismiss(self.trainer, self.engine, boxed=[*self.workers, *([self.evaluator] if self.evaluator else [])])


async def dismiss(*services: Supervised, boxed: list[Supervised]) -> None:
    """Kill the services. Those in `boxed` own sandboxes, which they are asked to close first."""
    await asyncio.gather(*(_farewell(service) for service in boxed))
    for service in (*boxed, *services):
        await service.remote.kill()


async def _farewell(service: Supervised) -> None:
    # A dead or stuck service is killed anyway, which ends its boxes too.
    with suppress(ClusterError):
        await service.remote.call("close", deadline=_FAREWELL_SECONDS)


async def gather_crew(
    recipe: Recipe,
    paths: RunPaths,
    compute: Compute,
    cluster: Cluster,
    journal: Journal,
    fleet: Fleet | None = None,
) -> Crew:
    """Start all services of an RL run. The trainer comes first, since it publishes the version that the engine starts
    with.

    `fleet` runs the workers' sandboxes on several nodes. Without it, each worker runs its own sandboxes."""
    plain = recipe.model_dump(mode="json", by_alias=True)
    root = str(paths.root)
    store = recipe.weights.place(paths.weights)
    sync = recipe.rl.mode == "sync"
    every = compute.threads

    async def start(name: str, service: str, *args: Any) -> Supervised:
        return await start_supervised(cluster, recipe.cluster, journal, name, service, *args)

    async def start_worker(name: str, split: str) -> Supervised:
        worker = "etude.rollout.worker:RolloutWorker"
        return await start(name, worker, root, plain, engine.remote, (split,), name, fleet)

    trainer_compute = replace(compute, threads=every if sync else recipe.rl.trainer_threads or every)
    trainer = await start("trainer", "etude.rl.trainer:RlTrainer", root, plain, asdict(trainer_compute), store)
    service, arguments = engine_service(
        paths.model(recipe.before("rl")),
        recipe.engine,
        dtype=compute.dtype_name,
        threads=every if sync else recipe.engine.threads or every,
        store=store,
        lockstep=sync,
        precision=recipe.precision,
        lora=recipe.lora,
        device=compute.device,
    )
    engine = await start("engine", service, *arguments)
    workers = [await start_worker(f"worker-{number}", "train") for number in range(recipe.rl.workers)]
    evaluator = None if recipe.rl.evaluate_after else await start_worker("evaluator", "dev")
    rollouts = RemoteEngine(engine.remote, recipe.cluster, lockstep=sync)
    return Crew(trainer, engine, workers, evaluator, rollouts)
