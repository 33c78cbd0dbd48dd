"""The room that a run needs, and the refusal of one that this machine cannot hold: bytes on the run's disk, and the
memory that a training stage takes at least.

All is counted from the network's shape before anything starts. The disk's figure is the most that the run can reach,
but for the deltas of weight versions, which are typical ones. The memory's leaves out activations, caches and the
interpreter, so what is refused cannot run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from etude.journal import RunPaths
from etude.lineage.base import named_folder, network_of
from etude.lineage.machine import memory_bytes
from etude.lineage.memory import WITH_ENGINE
from etude.lineage.state import MODELS, LineageError, LineageState
from etude.model import AdapterFolder, ModelConfig, parameters_of, survey
from etude.pretrain.memory import states_of, trained_network
from etude.recipe import Recipe
from etude.recipe.training import OptimizerRecipe
from etude.training import TrainerMemory

_FULL, _HALF = 4, 2
"""Bytes of a number in fp32 and in bf16."""
_KEPT_CHECKPOINTS = 2
"""Number of checkpoints that a supervised stage keeps until it ends."""
_STORED = {_FULL: (0.84, 0.66), _HALF: (0.69, 0.46)}
"""Stored over full bytes, by the bytes of a number: of a weight version without a base, and of a delta after an update
of 1e-3, which is larger than most (docs/weights.md)."""
_REST = 500_000_000
"""Bytes of a run's tasks, generated corpus, traces and sandboxes."""


@dataclass(frozen=True, slots=True)
class Need:
    what: str
    bytes: float
    cure: str = ""
    """How to lower it; empty if nothing in the recipe does."""


def disk_needs(recipe: Recipe, network: ModelConfig, done: Collection[str] = ()) -> list[Need]:
    """Return what a run writes to its disk, the base model apart. Stages that are `done` have no checkpoints any
    more."""
    trained, stages = trained_network(recipe, network).parameters(), recipe.training
    learned = sum(parameter.numel() for parameter in trained if parameter.requires_grad)
    needs = [Need(f"the models of {', '.join(stages)}", len(stages) * learned * _FULL, "leave out one of the stages")]
    checkpoints = [_checkpoints(recipe, network, stage) for stage in stages if stage not in done]
    needs += sorted(checkpoints, key=_bytes)[-1:]  # those of one stage at a time
    if "rl" in stages and not recipe.weights.store:
        versions = recipe.rl.steps + 1
        whole = -(-versions // recipe.weights.anchor_every)
        itemsize = _FULL if recipe.compute.dtype == "float32" else _HALF
        alone, delta = _STORED[itemsize]
        share = whole * alone + (versions - whole) * delta
        cure = "raise weights.anchor_every" if whole > 1 else "put them elsewhere with weights.store"
        needs.append(Need(f"{versions} versions of the weights", share * learned * itemsize, cure))
    return [*needs, Need("all else", _REST)]


def memory_needs(recipe: Recipe, network: ModelConfig, stage: str) -> list[Need]:
    """Return what a training stage certainly holds in memory, all of it at the end of a step."""
    held, optimizer = _states(recipe, network, stage), getattr(recipe, stage).optimizer
    total, half = parameters_of(network).total, recipe.compute.dtype != "float32"
    smaller = "begin with a smaller model.from" if recipe.model.from_ else ""
    needs = [
        Need("fp32 weights", held.masters, smaller),
        Need("fp32 gradients", held.gradients),
        Need(f"the moments of {optimizer.name}", held.moments, _fewer_moments(recipe, stage, optimizer)),
        Need("frozen weights", held.frozen / (2 if recipe.compute.dtype == "auto" else 1), smaller),
        Need("a bf16 copy", held.weights),
    ]
    if stage in WITH_ENGINE:
        needs.append(Need("the engine's weights", total * (_HALF if half else _FULL)))
    return [need for need in needs if need.bytes]


def _fewer_moments(recipe: Recipe, stage: str, optimizer: OptimizerRecipe) -> str:
    if recipe.lora.rank:
        return "lower lora.rank"
    return f'set {stage}.optimizer.name = "muon"' if optimizer.name == "adamw" else ""


def _states(recipe: Recipe, network: ModelConfig, stage: str) -> TrainerMemory:
    """Return what a stage's trainer holds, wherever its parts are; in fp32 where a probe chooses the dtype."""
    dtype = torch.bfloat16 if recipe.compute.dtype == "bfloat16" else torch.float32
    compute = recipe.compute.model_copy(update={"offload": "none"})
    return states_of(recipe.model_copy(update={"compute": compute}), stage, network, dtype)


def require_room(recipe: Recipe, paths: RunPaths, state: LineageState) -> None:
    """Raise LineageError, in one line, if this machine cannot hold a run. What the run has written already counts."""
    done = {stage for stage in recipe.training if stage in state.stages and state.stages[stage].done}
    network = network_of(recipe, paths)
    if recipe.compute.device == "cpu":
        for stage in (name for name in recipe.training if name not in done):
            _require(memory_needs(recipe, network, stage), memory_bytes(), "this machine's memory is", f"stage {stage}")
    needs = [*_base_needs(recipe, paths), *disk_needs(recipe, network, done)]
    free = shutil.disk_usage(paths.root).free
    _require(needs, free + _written(paths), f"{paths.root} has room for", "the run", "choose another disk with --runs")


def describe_needs(needs: Sequence[Need]) -> str:
    """Return the sum of all needs and its parts, the largest first."""
    ordered = sorted(needs, key=_bytes, reverse=True)
    parts = ", ".join(f"{_amount(need.bytes)} for {need.what}" for need in ordered)
    return f"{_amount(sum(need.bytes for need in needs))}: {parts}"


def _require(needs: Sequence[Need], room: float, where: str, who: str, *cures: str) -> None:
    if sum(need.bytes for need in needs) > room:
        ways = [need.cure for need in sorted(needs, key=_bytes, reverse=True) if need.cure]
        raise LineageError(
            f"{where} {_amount(room)}, {who} needs {describe_needs(needs)}; {', or '.join([*ways, *cures])}"
        )


def _base_needs(recipe: Recipe, paths: RunPaths) -> list[Need]:
    """Return the bytes of the base model where it is not there yet, and its files cannot be linked."""
    asked = recipe.model
    if not asked.from_ or paths.model("base").exists():
        return []
    if asked.weights == "random":
        return [Need("the base model", parameters_of(network_of(recipe)).total * _FULL)]
    folder = named_folder(recipe)
    found = survey(folder, mtp_heads=asked.mtp_heads)
    if AdapterFolder.open(folder) is not None or found.config.num_nextn_predict_layers != found.stored_heads:
        return [Need("the base model, written anew", found.parameters.total * _FULL)]
    linked = folder.stat().st_dev == paths.root.stat().st_dev
    return [] if linked else [Need("the base model", found.bytes)]


def _checkpoints(recipe: Recipe, network: ModelConfig, stage: str) -> Need:
    kept = recipe.rl.keep_checkpoints if stage == "rl" else _KEPT_CHECKPOINTS
    at_once = kept + 1  # the oldest is deleted once the new one is complete
    cure = "lower rl.keep_checkpoints" if stage == "rl" and kept > 1 else ""
    held = _states(recipe, network, stage)
    return Need(f"{at_once} checkpoints of {stage}", at_once * (held.masters + held.moments), cure)


def _written(paths: RunPaths) -> int:
    """Return the bytes of models, checkpoints and weight versions that the run has written so far."""
    places = (*(paths.stage(stage) for stage in MODELS if stage != "base"), paths.weights)
    files = (Path(folder) / name for place in places for folder, _, names in os.walk(place) for name in names)
    return sum(file.stat().st_size for file in files)


def _bytes(need: Need) -> float:
    return need.bytes


def _amount(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.0f} MB"
