"""The memory of RL's trainer: what it takes, and what to change if it is too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from etude.model import ModelConfig
from etude.model.activations import Pass
from etude.pretrain.memory import BLOCKS, checkpoints, plain_pass, states_of, version_bytes, with_pass
from etude.recipe import Recipe
from etude.training import TrainerMemory
from etude.training.memory import Change, advice, in_gb, own_limit


def trainer_memory(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> TrainerMemory:
    """Return the memory of the trainer's process, without the interpreter and its libraries. No network is built."""
    work = pass_of(recipe, dtype)
    return _with(recipe, config, work, checkpoints(recipe.compute, config, work))


def pass_of(recipe: Recipe, dtype: torch.dtype) -> Pass:
    """Return the largest forward and backward pass: of rows that fill the engine's context. That of the MTP heads
    follows it, and is smaller."""
    length, rollouts = recipe.engine.context, recipe.rl.prompts_per_step * recipe.rl.group
    return plain_pass(recipe, min(max(1, recipe.rl.microbatch_tokens // length), rollouts), length, dtype)


def told(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> str:
    """Return what the trainer takes and which field to change, for the message that memory ran out."""
    memory = trainer_memory(recipe, config, dtype)
    limit = min(own_limit(recipe.compute.device), memory.peak - 1)
    return f"it takes about {in_gb(memory.peak)} ({memory}); {advice(changes(recipe, config, dtype), limit)}"


def changes(recipe: Recipe, config: ModelConfig, dtype: torch.dtype) -> Iterator[Change]:
    """Yield changes that save memory without another result: first checkpointing, then smaller passes with it."""
    work = pass_of(recipe, dtype)
    fields = [] if checkpoints(recipe.compute, config, work) else [BLOCKS]
    if fields:
        yield Change(BLOCKS, _with(recipe, config, work, True).peak)
    while work.rows > 1:
        work = replace(work, rows=work.rows // 2)
        joined = " ".join([*fields, f"rl.microbatch_tokens={work.tokens}"])
        yield Change(joined, _with(recipe, config, work, True).peak)


def _with(recipe: Recipe, config: ModelConfig, work: Pass, checkpointed: bool) -> TrainerMemory:
    held = with_pass(states_of(recipe, "rl", config, work.dtype, passes=2), config, work, checkpointed)
    version = version_bytes(recipe, config, work.dtype)
    kept = 2 + (config.moe_layers > 0) + (recipe.rl.reward.kl > 0)
    return held.beside(published=kept * version, publishing=2 * version)
