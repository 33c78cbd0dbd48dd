"""Runs one supervised stage from start to result: resume, train, measure, save the model for the next stage.

Order on disk: compute.json and before.json when the stage starts, checkpoints while it trains, then model/, and
result.json last. A stage with a result.json is finished; running it again changes nothing. A stage killed at any moment
continues from the last checkpoint and ends with the same bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from etude.model import Transformer, config_from_recipe, save_trained, survey
from etude.pretrain.context import StageContext
from etude.pretrain.errors import PretrainError
from etude.pretrain.memory import told
from etude.recipe import Recipe
from etude.recipe.precision import PrecisionRecipe
from etude.recipe.training import StageRecipe
from etude.training import CheckpointError, Optim, StageRunner, StepLoss, told_when_short
from etude.training.compute import remembered_compute
from etude.training.files import write_file

STAGES = {"pretrain": "base", "long": "long", "mtp": "mtp", "sft": "sft"}
"""The module of this package whose `plan` prepares each stage."""

_UNREAD = {"checkpoint_seconds", "log_every", "measure_every"}
"""Fields of a stage's recipe that do not affect its result, so they may change before a resume."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    recipe: StageRecipe
    model: Transformer
    optim: Optim
    compute_loss: Callable[[int], Iterable[StepLoss]]
    """Computes the losses of a step's microbatches."""
    measure: Callable[[], dict[str, float]]
    """Returns the stage's metrics of the model in its current state."""
    inputs: dict[str, Any]
    """Digests of what the result depends on, such as the corpus and the model it starts from."""
    after_step: Callable[[int], None] | None = None
    measure_before: Callable[[], dict[str, float]] | None = None
    """Returns the metrics before training, if they are those of another model than `model`; None uses `measure`."""


def run_stage(name: str, run: Path, recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Run or resume a stage. Yields {"stage", "step", "total", "loss", "tokens_per_second", ...}; the last one has
    "result" too. Stop iterating to stop the stage."""
    folder = run / "stages" / name
    if (finished := finished_result(folder)) is not None:
        steps = finished["steps"]
        yield {"stage": name, "step": steps, "total": steps, "loss": None, "tokens_per_second": 0.0, "result": finished}
        return
    folder.mkdir(parents=True, exist_ok=True)
    compute = remembered_compute(folder / "compute.json", recipe.compute)
    compute.apply()
    if compute.device != "cpu":
        compute.require_determinism(recipe.compute)
    torch.manual_seed(recipe.seed)
    context = StageContext(run, recipe, compute, name)
    with told_when_short(f"stage {name}", compute.device, lambda: _needed(context)):
        yield from _run(context)


def _needed(context: StageContext) -> str:
    network = survey(context.before_folder).config if context.before else None
    if network is None:
        network = config_from_recipe(context.recipe.model, context.recipe.tokenizer.vocab_size)
    return told(context.recipe, context.name, network, context.compute.dtype)


def _run(context: StageContext) -> Iterator[dict[str, Any]]:
    folder, name = context.folder, context.name
    plan = _plan(context)
    before = _remembered_before(folder / "before.json", plan)
    runner = StageRunner(
        folder,
        plan.recipe,
        plan.model,
        plan.optim,
        plan.compute_loss,
        identity=_identity(context, plan),
        earlier_identity=_identity(context, plan, earlier=True),
        after_step=plan.after_step,
    )
    done = runner.resume()
    yield {"stage": name, "step": done, "total": runner.total, "loss": None, "tokens_per_second": 0.0}
    loss = None
    for progress in runner.run():
        loss = progress.loss
        yield {
            "stage": name,
            "step": progress.step,
            "total": progress.total,
            "loss": loss,
            "tokens_per_second": progress.tokens_per_second,
            **progress.metrics,
        }
    result = _finish(context, plan, before)
    steps = runner.total
    yield {"stage": name, "step": steps, "total": steps, "loss": loss, "tokens_per_second": 0.0, "result": result}


def finished_result(folder: Path) -> dict[str, Any] | None:
    """Return a stage's result.json; None if it is not finished."""
    path = folder / "result.json"
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def _plan(context: StageContext) -> StagePlan:
    if context.name not in STAGES:
        raise PretrainError(f"there is no supervised stage {context.name!r}: expected one of {', '.join(STAGES)}")
    made: StagePlan = import_module(f"etude.pretrain.{STAGES[context.name]}").plan(context)
    return made


def _remembered_before(path: Path, plan: StagePlan) -> dict[str, float]:
    """Return the metrics before training. They are stored, because a resumed run would measure a half-trained model."""
    if path.exists():
        known: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
        return known
    measured = (plan.measure_before or plan.measure)()
    write_file(path, json.dumps(measured).encode())
    return measured


def _identity(context: StageContext, plan: StagePlan, *, earlier: bool = False) -> str:
    """Return the digest of all that the stage's result depends on; `earlier` is that of `Section.made_from`."""
    stage_recipe = plan.recipe.made_from(earlier=earlier)
    known: dict[str, Any] = {
        "stage": context.name,
        "seed": context.recipe.seed,
        "stage_recipe": {name: value for name, value in stage_recipe.items() if name not in _UNREAD},
        "model": context.recipe.model.made_from(),
        "stdlib_share": context.recipe.corpus.stdlib_share,
        "inputs": plan.inputs,
    }
    if context.recipe.precision != PrecisionRecipe():  # older checkpoints lack this field and must still resume
        known["precision"] = context.recipe.precision.made_from()
    if context.recipe.lora.rank:
        known["lora"] = context.recipe.lora.made_from()
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _finish(context: StageContext, plan: StagePlan, before: dict[str, float]) -> dict[str, Any]:
    after = plan.measure()
    result: dict[str, Any] = {f"{name}_before": value for name, value in before.items()}
    result |= {f"{name}_after": value for name, value in after.items()}
    if context.name == "mtp":  # also without "_after": drafts of untrained heads are noise
        result |= after
    result |= {"steps": plan.optim.total_steps, "compute": str(context.compute), "inputs": plan.inputs}
    if context.recipe.precision.rounds:
        result["precision"] = str(context.recipe.precision)
    plan.optim.masters.restore()
    try:
        save_trained(plan.model.to("cpu"), context.folder / "model", context.run / "stages/base/model", context.run)
    except OSError as error:
        raise CheckpointError(f"cannot write {context.folder / 'model'}: {error}") from error
    write_file(context.folder / "result.json", json.dumps(result, indent=1).encode())
    return result
