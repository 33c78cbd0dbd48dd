"""The memory of RL's trainer: what it takes, and what to change if it is too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from etude.model import ModelConfig
from etude.model.activations import Pass
from etude.pretrain.memory import (
    as_begun,
    checkpoints,
    plain_pass,
    publishing_bytes,
    smaller_passes,
    states_of,
    version_bytes,
    with_pass,
)
from etude.recipe import Recipe
from etude.training import TrainerMemory
from etude.training.memory import Change, advice, in_gb, own_limit


def trainer_memory(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> TrainerMemory:
    """Return the memory of the trainer's process, without the interpreter and its libraries. No network is built."""
    work = pass_of(recipe, dtype)
    return with_pass(_states(recipe, config, dtype), config, work, checkpoints(recipe.compute, config, work))


def pass_of(recipe: Recipe, dtype: torch.dtype) -> Pass:
    """Return the largest forward and backward pass: of rows that fill the engine's context. That of the MTP heads
    follows it, and is smaller."""
    length, rollouts = recipe.engine.context, recipe.rl.prompts_per_step * recipe.rl.group
    rows = min(max(1, recipe.rl.microbatch_tokens // length), rollouts)
    return replace(plain_pass(recipe, rows, length, dtype), entropies=True)


def told(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> str:
    """Return what the trainer takes and which field to change, for the message that memory ran out."""
    recipe = as_begun(recipe, config, pass_of(recipe, dtype))
    memory = trainer_memory(recipe, config, dtype)
    limit = min(own_limit(recipe.compute.device), memory.peak - 1)
    return f"it takes about {in_gb(memory.peak)} ({memory}); {advice(changes(recipe, config, dtype), limit)}"


def changes(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> Iterator[Change]:
    """Yield changes that save memory without another result: first checkpointing, then smaller passes with it."""
    work, states = pass_of(recipe, dtype), _states(recipe, config, dtype)
    checkpointed = checkpoints(recipe.compute, config, work)
    yield from smaller_passes(states, states, config, work, "rl.microbatch_tokens", checkpointed)


def _states(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> TrainerMemory:
    version = version_bytes(recipe, config, dtype)
    kept = 1 + (config.moe_layers > 0) + (recipe.rl.reward.kl > 0)
    states = states_of(recipe, "rl", config, dtype, passes=2)
    return states.beside(published=kept * version, publishing=publishing_bytes(version))
