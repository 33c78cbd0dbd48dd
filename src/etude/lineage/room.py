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

from etude.journal import RunPaths
from etude.lineage.base import named_folder, network_of
from etude.lineage.machine import memory_bytes
from etude.lineage.state import MODELS, LineageError, LineageState
from etude.model import ModelConfig, Transformer, begin_adapters, parameters_of, survey
from etude.model.checkpoints.slots import without_memory
from etude.recipe import Recipe
from etude.recipe.training import OptimizerRecipe
from etude.training.kept import BLOCK
from etude.training.muon import blocks_of

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
    empty = _trained_shape(recipe, network)
    learned, stages = _learned(empty), recipe.training
    needs = [Need(f"the models of {', '.join(stages)}", len(stages) * learned * _FULL, "leave out one of the stages")]
    checkpoints = [_checkpoints(recipe, empty, stage) for stage in stages if stage not in done]
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


def _trained_shape(recipe: Recipe, network: ModelConfig) -> Transformer:
    """Return the network without memory, of which all is trained, or the recipe's adapters alone."""
    return begin_adapters(without_memory(network), recipe.lora)


def memory_needs(recipe: Recipe, network: ModelConfig, stage: str) -> list[Need]:
    """Return what a training stage certainly holds in memory, all of it at the end of a step."""
    empty = _trained_shape(recipe, network)
    total, learned = sum(parameter.numel() for parameter in empty.parameters()), _learned(empty)
    optimizer, itemsize = _optimizer(recipe, stage), _FULL if recipe.compute.dtype == "float32" else _HALF
    trained = sum(parameter.numel() for name, parameter in empty.named_parameters() if _trains(recipe, stage, name))
    moments = _state_bytes(recipe, empty, stage) - learned * _FULL
    smaller = "begin with a smaller model.from" if recipe.model.from_ else ""
    needs = [
        Need("fp32 weights", learned * _FULL, smaller),
        Need("fp32 gradients", trained * _FULL),
        Need(f"the moments of {optimizer.name}", moments, _fewer_moments(stage, optimizer)),
        Need("frozen weights", (total - learned) * itemsize),
    ]
    if recipe.compute.dtype == "bfloat16":
        needs.append(Need("a bf16 copy", learned * _HALF))
    if stage in ("rl", "continued"):
        needs.append(Need("the engine's weights", total * itemsize))
    return [need for need in needs if need.bytes]


def _fewer_moments(stage: str, optimizer: OptimizerRecipe) -> str:
    return f'set {stage}.optimizer.name = "muon"' if optimizer.name == "adamw" else ""


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
    found = named_folder(recipe)
    linked = asked.mtp_heads is None and found.stat().st_dev == paths.root.stat().st_dev
    return [] if linked else [Need("the base model", survey(found).bytes)]


def _checkpoints(recipe: Recipe, empty: Transformer, stage: str) -> Need:
    kept = recipe.rl.keep_checkpoints if stage == "rl" else _KEPT_CHECKPOINTS
    at_once = kept + 1  # the oldest is deleted once the new one is complete
    cure = "lower rl.keep_checkpoints" if stage == "rl" and kept > 1 else ""
    return Need(f"{at_once} checkpoints of {stage}", at_once * _state_bytes(recipe, empty, stage), cure)


def _state_bytes(recipe: Recipe, empty: Transformer, stage: str) -> int:
    """Return the bytes of a stage's fp32 weights and moments, which are what a checkpoint stores."""
    optimizer, moments = _optimizer(recipe, stage), 0
    muon = optimizer.name == "muon"
    for name, parameter in empty.named_parameters():
        if parameter.requires_grad and _trains(recipe, stage, name):
            moments += parameter.numel() * (1 if muon and blocks_of(name, parameter, empty.config) is not None else 2)
    return _learned(empty) * _FULL + (
        moments + moments // BLOCK * _FULL if optimizer.moments == "8bit" else moments * _FULL
    )


def _trains(recipe: Recipe, stage: str, name: str) -> bool:
    """Whether a stage computes the gradient of a parameter."""
    heads = name.startswith("mtp.")
    match stage:
        case "pretrain" | "long":
            return not heads
        case "mtp":
            return heads or recipe.mtp.joint_steps > 0
        case "rl":
            return not heads or recipe.rl.draft_loss > 0
        case _:
            return not heads or recipe.sft.draft_loss > 0


def _optimizer(recipe: Recipe, stage: str) -> OptimizerRecipe:
    optimizer: OptimizerRecipe = getattr(recipe, stage).optimizer
    return optimizer


def _learned(empty: Transformer) -> int:
    """Return the number of parameters that stages train and hand on."""
    return sum(parameter.numel() for parameter in empty.parameters() if parameter.requires_grad)


def _written(paths: RunPaths) -> int:
    """Return the bytes of models, checkpoints and weight versions that the run has written so far."""
    places = (*(paths.stage(stage) for stage in MODELS if stage != "base"), paths.weights)
    files = (Path(folder) / name for place in places for folder, _, names in os.walk(place) for name in names)
    return sum(file.stat().st_size for file in files)


def _bytes(need: Need) -> float:
    return need.bytes


def _amount(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.0f} MB"
