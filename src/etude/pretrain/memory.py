"""The memory of a supervised stage: what it takes, whether its layers are checkpointed, and what to change if it is too
much."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from etude.model import ModelConfig, Transformer
from etude.model.activations import Pass, activations_of, must_checkpoint
from etude.recipe import Recipe
from etude.recipe.compute import ComputeRecipe
from etude.recipe.training import StageRecipe
from etude.training import TrainerMemory, free_memory
from etude.training.memory import Change, advice, in_gb, own_limit

_HEAP = 2**25
"""Bytes of a tensor from which glibc allocates it outside of the heap, and gives its memory back when it is freed."""
BLOCKS = 'compute.checkpoint_activations="blocks"'


def stage_memory(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype) -> TrainerMemory:
    """Return the memory of a stage's process, without the interpreter and its libraries. No network is built."""
    work = pass_of(recipe, name, config, dtype)
    states = TrainerMemory.of(
        without_memory(config),
        _stage(recipe, name).optimizer,
        dtype,
        passes=_stage(recipe, name).largest_pass[2],
        offload=recipe.compute.offload,
    )
    return with_pass(states, config, work, checkpoints(recipe.compute, config, work))


def with_pass(states: TrainerMemory, config: ModelConfig, work: Pass, checkpointed: bool) -> TrainerMemory:
    held = activations_of(config, work, checkpointed=checkpointed)
    reused = work.cuda or work.tokens * config.hidden_size * work.bytes > _HEAP
    return states.during(activations=held.layers + held.ends, logits=held.last, reused=reused)


def without_memory(config: ModelConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config)


def pass_of(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype) -> Pass:
    """Return the largest forward and backward pass of a stage."""
    rows, length, _ = _stage(recipe, name).largest_pass
    drafts = name == "mtp" or (name == "sft" and recipe.sft.draft_loss > 0)
    return Pass(rows, length, dtype, recipe.compute.device == "cuda", drafts and config.num_nextn_predict_layers > 0)


def checkpoints(compute: ComputeRecipe, config: ModelConfig, work: Pass) -> bool:
    """Whether the layers of a pass are checkpointed, which "auto" decides by the memory that is free now."""
    if compute.checkpoint_activations != "auto":
        return compute.checkpoint_activations == "blocks"
    return must_checkpoint(config, work, free_memory(compute.device))


def told(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype) -> str:
    """Return what a stage takes and which field to change, for the message that memory ran out."""
    memory = stage_memory(recipe, name, config, dtype)
    limit = min(own_limit(recipe.compute.device), memory.peak - 1)
    return f"it takes about {in_gb(memory.peak)} ({memory}); {advice(changes(recipe, name, config, dtype), limit)}"


def changes(recipe: Recipe, name: str, config: ModelConfig, dtype: torch.dtype) -> Iterator[Change]:
    """Yield changes that save memory without another result: first checkpointing, then smaller passes with it."""
    stage = _stage(recipe, name)
    work = pass_of(recipe, name, config, dtype)
    network, fields, offload = without_memory(config), [], recipe.compute.offload
    if not checkpoints(recipe.compute, config, work):
        fields.append(BLOCKS)
        states = TrainerMemory.of(network, stage.optimizer, dtype, passes=stage.largest_pass[2], offload=offload)
        yield Change(BLOCKS, with_pass(states, config, work, True).peak)
    states = TrainerMemory.of(network, stage.optimizer, dtype, passes=2, offload=offload)
    rows = work.rows
    while rows > 1:
        rows //= 2
        smaller = Pass(rows, work.length, dtype, work.cuda, work.drafts)
        joined = " ".join([*fields, f"{name}.microbatch_tokens={rows * work.length}"])
        yield Change(joined, with_pass(states, config, smaller, True).peak)


def _stage(recipe: Recipe, name: str) -> StageRecipe:
    found: StageRecipe = getattr(recipe, name)
    return found
