"""The stages of a run, in order."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

from etude.cluster import DeadlineExceeded, ServiceDied
from etude.lineage.base import adopt_base
from etude.lineage.context import RunContext
from etude.lineage.continued import run_continued
from etude.lineage.line import Stage
from etude.lineage.prepare import (
    make_corpus,
    make_demonstrations,
    make_tasks,
    require_long_documents,
    require_own_format,
)
from etude.lineage.reinforce import evaluate_test, run_rl
from etude.lineage.state import recipe_of
from etude.lineage.summary import one_edit
from etude.model.checkpoints.writing import TRAVELLING
from etude.recipe import Recipe


def _supervised(
    name: str,
    title: str,
    needs: tuple[str, ...],
    require: Callable[[RunContext], None] | None = None,
) -> Stage:
    async def run(context: RunContext) -> dict[str, Any]:
        recipe = recipe_of(context.resolved_recipe(), name).model_dump(mode="json", by_alias=True)
        return await _run_as_service(context, name, recipe)

    beside = tuple(f"stages/{name}/{file}" for file in ("metrics.jsonl", "result.json", "before.json", "compute.json"))
    return Stage(
        name, title, ("model", name, "compute", "precision", "lora"), _model(name), run, require, needs, beside
    )


async def _run_as_service(context: RunContext, stage: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """Run the stage as a service in its own process and return its result. A service that dies or hangs is restarted,
    as often as the recipe allows, and resumes. A stage that has ended needs its checkpoints no longer."""
    service = "etude.pretrain.service:StageService"
    supervised = await context.start(stage, service, stage, str(context.paths.root), recipe, cpus=1.0)
    limits = context.recipe.cluster
    try:
        while True:
            incarnation = supervised.incarnation
            try:
                async for update in supervised.remote.stream("run", deadline=limits.train_seconds):
                    context.screen.update(stage, update)
                result: dict[str, Any] = await supervised.remote.call("result", deadline=limits.call_seconds)
                await asyncio.to_thread(shutil.rmtree, context.paths.checkpoints(stage), ignore_errors=True)
                return result
            except (ServiceDied, DeadlineExceeded) as error:
                context.screen.note(f"{error}; starting it again where it was")
                await supervised.heal(incarnation, str(error))
    finally:
        await supervised.remote.kill()


def _model(stage: str) -> tuple[str, ...]:
    return (f"stages/{stage}/model",)


_ACTING = ("harness", "engine", "sandbox", "weights", "compute", "precision")

_TASKS = Stage(
    "tasks",
    "tasks",
    ("tasks",),
    ("tasks/train", "tasks/dev", "tasks/test"),
    make_tasks,
    require_own_format,
    beside=("tasks/gate.jsonl", "tasks/separate"),
)


def stages_of(recipe: Recipe) -> tuple[Stage, ...]:
    """Return all stages of a recipe in order: the model it begins with, those that make data, its training stages, and
    the evaluation."""
    made = [_base(recipe), _TASKS] if recipe.model.from_ else [_TASKS]
    if recipe.reads_corpus:
        made.append(_corpus(recipe))
    for name in recipe.training:
        if name == "sft":
            made.append(_demonstrations(recipe))
        made.append(_trained(name, recipe))
    return (*made, _evaluation(recipe))


def _base(recipe: Recipe) -> Stage:
    brought = () if recipe.own_tokenizer else TRAVELLING
    return Stage("base", "base model", ("model",), (*_model("base"), *brought), adopt_base)


def _corpus(recipe: Recipe) -> Stage:
    return Stage(
        "corpus",
        "corpus",
        ("corpus", "tokenizer", "harness.profile"),
        ("corpus", "tokenizer.json"),
        make_corpus,
        needs=("tasks",) if recipe.own_tokenizer else ("base", "tasks"),
    )


def _demonstrations(recipe: Recipe) -> Stage:
    return Stage(
        "demonstrations",
        "demonstrations",
        ("harness", "engine.context", "sandbox", "sft"),
        ("demonstrations",),
        make_demonstrations,
        needs=("tasks", _tokenizer(recipe)),
    )


def _tokenizer(recipe: Recipe) -> str:
    """Return the stage that leaves the tokenizer."""
    return "corpus" if recipe.own_tokenizer else "base"


def _trained(name: str, recipe: Recipe) -> Stage:
    """Return a training stage, which starts from the model of the one before it."""
    start = (before,) if (before := recipe.before(name)) else ()
    acting = tuple(dict.fromkeys(("tasks", _tokenizer(recipe), *start)))
    match name:
        case "pretrain":
            needs_long = require_long_documents if "long" in recipe.stages else None
            return _supervised(name, "base pretraining", ("corpus", *start), needs_long)
        case "long":
            return _supervised(name, "long context", ("corpus", *start), require_long_documents)
        case "mtp":
            return _supervised(name, "MTP heads", ("corpus", *start))
        case "sft":
            return _supervised(name, "SFT", tuple(dict.fromkeys((_tokenizer(recipe), *start, "demonstrations"))))
        case "rl":
            return Stage(
                name,
                "RL",
                ("rl", "lora", *_ACTING),
                _model(name),
                run_rl,
                needs=acting,
                beside=("stages/rl/metrics.jsonl", "eval/dev-step-*"),
            )
        case _:
            return Stage(
                name,
                "SFT continued",
                ("continued", "sft", "tasks", "lora", *_ACTING),
                _model(name),
                run_continued,
                needs=acting,
                beside=("stages/continued/metrics.jsonl",),
            )


def _evaluation(recipe: Recipe) -> Stage:
    names = tuple(name for stage in recipe.evaluated for name in (f"test-{stage}", one_edit(f"test-{stage}")))
    return Stage(
        "evaluate",
        "test",
        ("evaluation", "harness", "engine", "sandbox", "compute", "precision"),
        tuple(f"eval/{name}/results.jsonl" for name in names),
        evaluate_test,
        needs=tuple(dict.fromkeys(("tasks", _tokenizer(recipe), *recipe.evaluated))),
        beside=tuple(f"eval/{name}/{what}" for name in names for what in ("summary.json", "traces")),
    )
