"""What a recipe would take, before it is run: parameters, memory, tokens and seconds per stage.

Tokens take what a few steps of this very network, forward and backward, take on this machine, times what a stage adds:
optimizer, draft heads, longer rows. What boxes, gradings and documents add was measured with the tiny recipe, by hand.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from etude.model import ModelConfig, Transformer, compute_with
from etude.recipe import Recipe
from etude.rl.curve import evaluated_steps
from etude.training.compute import Compute, choose_compute

_BYTES_PER_PARAMETER = 4 + 8 + 4 + 2
"""fp32 master, two moments, gradient, and a bf16 copy."""
_MEASURED_STEPS = 3
_ADDED = {"pretrain": 1.65, "long": 2.6, "mtp": 1.35, "sft": 3.0}
"""Of a stage's seconds per token, beside those of the bare network."""
_ROLLOUT_TOKENS = 0.7
"""A rollout takes about as long as training on this share of a context, sampling and RL's training together..."""
_TRIED_TOKENS = 0.5
"""...and in an evaluation, where nothing is trained."""
_BOX_SECONDS, _TRIED_BOX_SECONDS = 0.014, 0.02
"""Of a rollout in RL, and in an evaluation, which grades first edits too."""
_TASK_SECONDS = 0.14
_EPISODE_SECONDS = 0.016
_CORPUS_SECONDS = 26.0


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
    stages = [("tasks", 0, tasks * _TASK_SECONDS), ("corpus", 0, _CORPUS_SECONDS)]
    for name, stage in (("pretrain", recipe.pretrain), ("long", recipe.long), ("mtp", recipe.mtp), ("sft", recipe.sft)):
        tokens = (stage.steps + getattr(stage, "joint_steps", 0)) * stage.batch * stage.length
        if name == "sft":
            stages.append(("demonstrations", 0, recipe.sft.demonstrations * _EPISODE_SECONDS))
        stages.append((name, tokens, tokens / pace * _ADDED[name]))
    context, rl, test = recipe.engine.context, recipe.rl, recipe.evaluation

    def tried(rollouts: int) -> tuple[int, float]:
        return rollouts * context, rollouts * (_TRIED_BOX_SECONDS + _TRIED_TOKENS * context / pace)

    if recipe.continued.seconds:
        stages.append(("continued", 0, recipe.continued.seconds))
    else:
        rollouts = rl.steps * rl.prompts_per_step * rl.group
        tokens, seconds = tried(len(evaluated_steps(rl)) * recipe.tasks.dev * (rl.evaluate_samples + test.greedy))
        seconds += rollouts * (_BOX_SECONDS + _ROLLOUT_TOKENS * context / pace)
        stages.append(("rl", rollouts * context + tokens, seconds))
    tries = sum(samples + test.greedy for samples in (test.samples, test.one_edit) if samples)
    stages.append(("evaluate", *tried(2 * recipe.tasks.test * tries)))
    longest = max(recipe.pretrain.batch * recipe.pretrain.length, recipe.rl.microbatch_tokens)
    activations = longest * (config.hidden_size * 40 * config.num_hidden_layers + config.vocab_size * 3) * 4
    return RunPlan(compute, count.total, count.active, count.total * _BYTES_PER_PARAMETER + activations, stages)


def _tokens_per_second(config: ModelConfig, recipe: Recipe, compute: Compute) -> float:
    compute.apply()
    model = Transformer(config).to(device=compute.device, dtype=compute.dtype)
    compute_with(model, recipe.precision)
    shape = (recipe.pretrain.batch, recipe.pretrain.length)
    tokens = torch.randint(config.vocab_size, shape, device=compute.device)
    begun = 0.0
    for step in range(_MEASURED_STEPS + 1):
        if step == 1:  # the first one warms up
            begun = time.perf_counter()
        model(tokens).logits_btv.mean().backward()
    return _MEASURED_STEPS * tokens.numel() / (time.perf_counter() - begun)
