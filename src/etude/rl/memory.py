"""The memory of RL's trainer: what it takes, and what to change if it is too much."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from etude.model import ModelConfig
from etude.model.activations import Pass
from etude.pretrain.memory import BLOCKS, checkpoints, with_pass, without_memory
from etude.recipe import Recipe
from etude.training import TrainerMemory
from etude.training.memory import Change, advice, in_gb, own_limit


def trainer_memory(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> TrainerMemory:
    """Return the memory of the trainer's process, without the interpreter and its libraries. No network is built."""
    work = pass_of(recipe, config, dtype)
    return _with(recipe, config, work, checkpoints(recipe.compute, config, work))


def pass_of(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> Pass:
    """Return the largest forward and backward pass: of rows that fill the engine's context."""
    length, rollouts = recipe.engine.context, recipe.rl.prompts_per_step * recipe.rl.group
    rows = min(max(1, recipe.rl.microbatch_tokens // length), rollouts)
    drafts = recipe.rl.draft_loss > 0 and config.num_nextn_predict_layers > 0
    return Pass(rows, length, dtype, recipe.compute.device == "cuda", drafts)


def told(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> str:
    """Return what the trainer takes and which field to change, for the message that memory ran out."""
    memory = trainer_memory(recipe, config, dtype)
    limit = min(own_limit(recipe.compute.device), memory.peak - 1)
    return f"it takes about {in_gb(memory.peak)} ({memory}); {advice(changes(recipe, config, dtype), limit)}"


def changes(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> Iterator[Change]:
    """Yield changes that save memory without another result: first checkpointing, then smaller passes with it."""
    work = pass_of(recipe, config, dtype)
    fields = [] if checkpoints(recipe.compute, config, work) else [BLOCKS]
    if fields:
        yield Change(BLOCKS, _with(recipe, config, work, True).peak)
    rows = work.rows
    while rows > 1:
        rows //= 2
        smaller = Pass(rows, work.length, dtype, work.cuda, work.drafts)
        joined = " ".join([*fields, f"rl.microbatch_tokens={rows * work.length}"])
        yield Change(joined, _with(recipe, config, smaller, True).peak)


def _with(recipe: Recipe, config: ModelConfig, work: Pass, checkpointed: bool) -> TrainerMemory:
    model = without_memory(config)
    states = TrainerMemory.of(model, recipe.rl.optimizer, work.dtype, passes=2, offload=recipe.compute.offload)
    version = sum(parameter.numel() for parameter in model.parameters()) * work.dtype.itemsize
    kept = 1 + (config.moe_layers > 0) + (recipe.rl.reward.kl > 0)
    held = with_pass(states, config, work, checkpointed)
    return held.beside(published=kept * version, publishing=2 * version)
