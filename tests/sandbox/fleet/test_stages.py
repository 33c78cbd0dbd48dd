"""What a recipe says of hosts its stages do: tasks are gated, and rollouts run, in boxes on the cluster's nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rich.console import Console
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import ScriptedEngine, compact_format, written

from etude.cli.plan import describe_boxes
from etude.cluster import ClusterError
from etude.journal import Journal, RunPaths
from etude.lineage import LineageState
from etude.lineage.context import RunContext
from etude.lineage.prepare import make_tasks
from etude.lineage.screen import Screen
from etude.recipe import Recipe, RecipeError
from etude.recipe.load import load_recipe
from etude.rollout import RolloutJob
from etude.sandbox import SandboxUnavailable, open_sandboxes
from etude.sandbox.fleet import Fleet
from etude.tasks import Split, list_tasks
from etude.tasks.oracle import reference_repair

HOSTS = {"fleet-node-0", "fleet-node-1"}


class Script:
    """Plays turns in order, also after it was sent to another process."""

    def __init__(self, turns: list[list[int]]) -> None:
        self.left = turns

    def __call__(self, _: object) -> list[int]:
        return self.left.pop(0)


def recipe_of(backend: str, hosts: int = 2) -> Recipe:
    tasks = {"train": 2, "dev": 1, "test": 1, "gate_runs": 1}
    cluster = {"backend": backend, "nodes": 2}
    return Recipe.model_validate({"name": "f", "cluster": cluster, "sandbox": {"hosts": hosts}, "tasks": tasks})


def context_of(recipe: Recipe, root: Path) -> RunContext:
    paths = RunPaths(root)
    compact_format().tokenizer.save(paths.tokenizer)
    journal = Journal(paths.journal, "driver")
    return RunContext(recipe, paths, LineageState.load(paths.lineage), journal, Screen(journal, Console(quiet=True)))


@pytest.mark.parametrize("backend", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
@in_loop
async def test_stages_and_workers_have_their_boxes_on_the_hosts(backend: str, tmp_path: Path) -> None:
    context = context_of(recipe_of(backend), tmp_path)
    try:
        assert (await make_tasks(context))["discarded"] == []
        fleet = await context.fleet()
        assert fleet is not None
        assert set(fleet.hosts) == HOSTS
        if backend == "ray":
            await fleet.dispatcher.kill()  # The stage's context starts it again.
        async with asyncio.timeout(60):
            while (census := await census_of(fleet)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert census == dict.fromkeys(HOSTS, 0), "the stage's own boxes are gone"
        # What follows can only be on the other host.
        await fleet.dispatcher.call("drain", "fleet-node-0", 60.0, deadline=60)
        assert await a_rollout(context, fleet)
        assert {path.name for path in context.paths.sandboxes.iterdir()} == HOSTS
    finally:
        await context.close()
        context.journal.close()


async def census_of(fleet: Fleet) -> dict[str, int] | None:
    """None while no dispatcher answers, or one that does not know its hosts yet."""
    try:
        counts: dict[str, int] = await fleet.dispatcher.call("census", deadline=60)
    except ClusterError:
        return None
    return counts if set(counts) == HOSTS else None


async def a_rollout(context: RunContext, fleet: Fleet) -> bool:
    """Whether a worker, in a process of its own where the cluster has processes, solves a task."""
    task = list_tasks(context.paths.tasks, Split.TRAIN)[0]
    repair = reference_repair(task)
    steps = ["shell python check.py", f"edit {repair.file} {repair.line} {repair.right}", "finish"]
    engine = ScriptedEngine(Script([written(step) for step in steps]))
    plain = context.recipe.model_dump(mode="json", by_alias=True)
    service = "etude.rollout.worker:RolloutWorker"
    cluster, root = await context.cluster(), str(context.paths.root)
    worker = await cluster.start("worker", service, root, plain, engine, ("train",), "worker", fleet, cpus=0.1)
    result = await worker.call("rollout", RolloutJob(task.id, Split.TRAIN, "g1"), deadline=60)
    await worker.call("close", deadline=60)
    return bool(result.verdict.passed)


def test_more_hosts_than_nodes_are_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('name = "r"\nsandbox.hosts = 3\ncluster.nodes = 2\n')
    with pytest.raises(RecipeError, match=r"sandbox\.hosts must not exceed cluster\.nodes.*3.*2"):
        load_recipe(file)


def test_a_fleet_is_not_made_up_where_there_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"sandbox\.hosts = 2.*leave it out"):
        open_sandboxes(recipe_of("inline").sandbox, tmp_path)


def test_the_plan_says_where_boxes_live() -> None:
    assert describe_boxes(recipe_of("inline", 2)) == "on 2 of 2 nodes"
    assert describe_boxes(recipe_of("inline", 0)).startswith("beside")
