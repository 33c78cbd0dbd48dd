"""What a recipe would take, before it is run: parameters, memory, tokens and seconds per stage.

Seconds are tokens divided by a measured throughput: a few steps of this very network, forward and backward, on this
machine. RL and evaluation are judged by the tokens that they may sample at most, so theirs is an upper bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from etude.model import ModelConfig, Transformer
from etude.recipe import Recipe
from etude.training.compute import Compute, choose_compute

_BYTES_PER_PARAMETER = 4 + 8 + 4 + 2
"""fp32 master, two moments, gradient, and a bf16 copy."""
_MEASURED_STEPS = 3
_DECODE_COST = 1.5
"""Sampling a token takes about as long as training on this many."""
_GATE_SECONDS = 0.15
_EPISODE_SECONDS = 0.02
_CORPUS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RunPlan:
    compute: Compute
    parameters: int
    active: int
    memory_bytes: float
    stages: list[tuple[str, int, float]]
    """Name, tokens, seconds."""


def plan_run(recipe: Recipe) -> RunPlan:
    compute = choose_compute(recipe.compute)
    config = ModelConfig.from_recipe(recipe.model, recipe.tokenizer.vocab_size)
    count = config.parameter_count()
    pace = _tokens_per_second(config, recipe, compute)
    tasks = recipe.tasks.train + recipe.tasks.dev + recipe.tasks.test
    stages = [("tasks", 0, tasks * _GATE_SECONDS), ("corpus", 0, _CORPUS_SECONDS)]
    for name, stage in (("pretrain", recipe.pretrain), ("long", recipe.long), ("mtp", recipe.mtp), ("sft", recipe.sft)):
        tokens = (stage.steps + getattr(stage, "joint_steps", 0)) * stage.batch * stage.length
        if name == "sft":
            stages.append(("demonstrations", 0, recipe.sft.demonstrations * _EPISODE_SECONDS))
        stages.append((name, tokens, tokens / pace))
    rollout = recipe.engine.context
    if recipe.continued.seconds:
        stages.append(("continued", 0, recipe.continued.seconds))
    else:
        sampled = recipe.rl.steps * recipe.rl.prompts_per_step * recipe.rl.group * rollout
        stages.append(("rl", sampled, sampled / pace * (1 + _DECODE_COST)))
    test = recipe.evaluation
    tries = sum(samples + test.greedy for samples in (test.samples, test.one_edit) if samples)
    evaluated = 2 * recipe.tasks.test * tries * rollout
    stages.append(("evaluate", evaluated, evaluated / pace * _DECODE_COST))
    longest = max(recipe.pretrain.batch * recipe.pretrain.length, recipe.rl.microbatch_tokens)
    activations = longest * (config.hidden_size * 40 * config.num_hidden_layers + config.vocab_size * 3) * 4
    return RunPlan(compute, count.total, count.active, count.total * _BYTES_PER_PARAMETER + activations, stages)


def _tokens_per_second(config: ModelConfig, recipe: Recipe, compute: Compute) -> float:
    compute.apply()
    model = Transformer(config).to(device=compute.device, dtype=compute.dtype)
    shape = (recipe.pretrain.batch, recipe.pretrain.length)
    tokens = torch.randint(config.vocab_size, shape, device=compute.device)
    begun = 0.0
    for step in range(_MEASURED_STEPS + 1):
        if step == 1:  # the first one warms up
            begun = time.perf_counter()
        model(tokens).logits_btv.mean().backward()
    return _MEASURED_STEPS * tokens.numel() / (time.perf_counter() - begun)
