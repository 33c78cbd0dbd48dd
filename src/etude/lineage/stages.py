"""The stages of a run, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etude.cluster import DeadlineExceeded, ServiceDied
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
    return Stage(name, title, ("model", name, "compute", "precision"), _model(name), run, require, needs, beside)


async def _run_as_service(context: RunContext, stage: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """Run the stage as a service in its own process and return its result. A service that dies or hangs is restarted,
    as often as the recipe allows, and resumes."""
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
                return result
            except (ServiceDied, DeadlineExceeded) as error:
                context.screen.note(f"{error}; starting it again where it was")
                await supervised.heal(incarnation, str(error))
    finally:
        await supervised.remote.kill()


def _model(stage: str) -> tuple[str, ...]:
    return (f"stages/{stage}/model",)


def _evaluation(end: str) -> Stage:
    names = tuple(name for test in ("test-sft", f"test-{end}") for name in (test, one_edit(test)))
    return Stage(
        "evaluate",
        "test",
        ("evaluation", "harness", "engine", "sandbox", "compute", "precision"),
        tuple(f"eval/{name}/results.jsonl" for name in names),
        evaluate_test,
        needs=("tasks", "corpus", "sft", end),
        beside=tuple(f"eval/{name}/{what}" for name in names for what in ("summary.json", "traces")),
    )


_ACTING = ("harness", "engine", "sandbox", "weights", "compute", "precision")

_TO_SFT: tuple[Stage, ...] = (
    Stage(
        "tasks",
        "tasks",
        ("tasks",),
        ("tasks/train", "tasks/dev", "tasks/test"),
        make_tasks,
        require_own_format,
        beside=("tasks/gate.jsonl", "tasks/separate"),
    ),
    Stage(
        "corpus",
        "corpus",
        ("corpus", "tokenizer", "harness.profile"),
        ("corpus", "tokenizer.json"),
        make_corpus,
        needs=("tasks",),
    ),
    _supervised("pretrain", "base pretraining", ("corpus",), require_long_documents),
    _supervised("long", "long context", ("corpus", "pretrain")),
    _supervised("mtp", "MTP heads", ("corpus", "long")),
    Stage(
        "demonstrations",
        "demonstrations",
        ("harness", "engine.context", "sandbox", "sft"),
        ("demonstrations",),
        make_demonstrations,
        needs=("tasks", "corpus"),
    ),
    _supervised("sft", "SFT", ("corpus", "mtp", "demonstrations")),
)

_RL = Stage(
    "rl",
    "RL",
    ("rl", *_ACTING),
    _model("rl"),
    run_rl,
    needs=("tasks", "corpus", "sft"),
    beside=("stages/rl/metrics.jsonl", "eval/dev-step-*"),
)

_CONTINUED = Stage(
    "continued",
    "SFT continued",
    ("continued", "sft", "tasks", *_ACTING),
    _model("continued"),
    run_continued,
    needs=("tasks", "corpus", "sft"),
    beside=("stages/continued/metrics.jsonl",),
)

STAGES = (*_TO_SFT, _RL, _evaluation("rl"))
_WITH_SFT_CONTINUED = (*_TO_SFT, _CONTINUED, _evaluation("continued"))


def stages_of(recipe: Recipe) -> tuple[Stage, ...]:
    """Return a recipe's stages: after SFT comes RL, or continued SFT if continued.seconds is set."""
    return _WITH_SFT_CONTINUED if recipe.continued.seconds else STAGES
