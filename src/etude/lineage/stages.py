"""The line itself, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from etude.lineage.context import RunContext
from etude.lineage.line import Stage
from etude.lineage.prepare import make_corpus, make_demonstrations, make_tasks, require_long_documents
from etude.lineage.reinforce import evaluate_test, run_rl
from etude.lineage.summary import one_edit
from etude.lineage.supervise import run_service_stage


def _supervised(name: str) -> Callable[[RunContext], Awaitable[dict[str, Any]]]:
    async def run(context: RunContext) -> dict[str, Any]:
        recipe = context.resolved_recipe().model_dump(mode="json", by_alias=True)
        service = "etude.pretrain.service:StageService"
        return await run_service_stage(context, name, service, name, str(context.paths.root), recipe)

    return run


def _model(stage: str) -> tuple[str, ...]:
    return (f"stages/{stage}/model",)


STAGES: tuple[Stage, ...] = (
    Stage("tasks", "tasks", ("tasks",), ("tasks/train", "tasks/dev", "tasks/test"), make_tasks),
    Stage("corpus", "corpus", ("corpus", "tokenizer"), ("corpus", "tokenizer.json"), make_corpus),
    Stage(
        "pretrain",
        "base pretraining",
        ("model", "pretrain", "compute"),
        _model("pretrain"),
        _supervised("pretrain"),
        require_long_documents,
    ),
    Stage("long", "long context", ("model", "long", "compute"), _model("long"), _supervised("long")),
    Stage("mtp", "MTP heads", ("model", "mtp", "compute"), _model("mtp"), _supervised("mtp")),
    Stage(
        "demonstrations",
        "demonstrations",
        ("harness", "engine", "sandbox", "sft"),
        ("demonstrations",),
        make_demonstrations,
    ),
    Stage("sft", "SFT", ("model", "sft", "compute"), _model("sft"), _supervised("sft")),
    Stage("rl", "RL", ("rl", "harness", "engine", "sandbox", "weights", "compute"), _model("rl"), run_rl),
    Stage(
        "evaluate",
        "test",
        ("evaluation", "harness", "engine", "sandbox"),
        tuple(f"eval/test-{name}/results.jsonl" for stage in ("sft", "rl") for name in (stage, one_edit(stage))),
        evaluate_test,
    ),
)
