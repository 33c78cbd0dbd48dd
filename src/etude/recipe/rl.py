"""Reinforcement learning and the versions of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from etude.recipe.section import Section
from etude.recipe.training import OptimizerRecipe

Below = Annotated[float, Field(ge=0, lt=1)]
Above = Annotated[float, Field(gt=1)]


class WeightsRecipe(Section):
    store: str = ""
    """URL or folder of the version store; empty means the run's own folder."""
    anchor_every: int = Field(25, ge=1)
    """A full copy every so many versions; deltas between."""

    def place(self, own: Path) -> str:
        """Where the versions of a run lie; `own` is the folder that it has for them."""
        return self.store or str(own)


class LengthCostRecipe(Section):
    """C(x) = ((1 + k x)^(1-q) - 1) / (k (1-q)), x the weighted effort of a rollout."""

    scale: float = Field(0.02, ge=0)
    """Weight of the cost in the reward."""
    k: float = Field(0.5, gt=0)
    """How soon the cost starts to flatten."""
    q: float = Field(0.5, ge=0)
    """How much it flattens: 0 is a straight line, 1 a logarithm, above 1 it has a ceiling."""
    thinking_tokens: float = Field(0.01, ge=0)
    """Effort of one thinking token. The unit of effort is arbitrary; one turn costs 1 by default."""
    call_tokens: float = Field(0.01, ge=0)
    """Effort of one token of a tool call."""
    output_tokens: float = Field(0.002, ge=0)
    """Effort of one token of tool output."""
    message_tokens: float = Field(0.01, ge=0)
    """Effort of one token of a message."""
    tool_calls: float = Field(0.0, ge=0)
    """Effort of one tool call."""
    turns: float = Field(1.0, ge=0)
    """Effort of one turn."""


class RewardRecipe(Section):
    passed: float = Field(1.0, gt=0)
    """Reward of solving; all costs but the KL together stay below half of it."""
    truncated: float = Field(0.1, ge=0)
    """Cost of running out of a budget (turns, tokens, calls...) instead of finishing."""
    false_claim: float = Field(0.1, ge=0)
    """Cost of ending a task as done that is not: else giving up is the cheapest way to fail."""
    invalid_call: float = Field(0.02, ge=0)
    """Cost of each malformed call, up to five."""
    length: LengthCostRecipe = LengthCostRecipe()
    kl: float = Field(0.0, ge=0)
    """Weight of the per-sequence k1 penalty against the policy at the start of RL; not bounded as the costs are."""


class ReplayRecipe(Section):
    mode: Literal["off", "on", "filter"] = "filter"
    """Whether the trainer uses the engine's experts; "filter" refuses implausible ones."""
    threshold: float = Field(0.5, gt=0, le=1)
    """A replayed expert is refused when its score is below this share of the trainer's own k-th best."""


class RlRecipe(Section):
    mode: Literal["async", "sync"] = "async"
    """"sync" alternates sampling and training in lockstep and is bit-reproducible."""
    steps: int = Field(30, ge=0)
    """Optimizer batches, and versions of the weights published."""
    prompts_per_step: int = Field(16, ge=1)
    """Tasks that one step trains on; each task is used once."""
    group: int = Field(8, ge=2)
    """Rollouts of one task, compared with each other."""
    max_staleness: int = Field(2, ge=0)
    """Versions that training may be ahead of the one a group was admitted under."""
    workers: int = Field(1, ge=1)
    """Environment worker processes."""
    rollouts_per_worker: int = Field(192, ge=1)
    """Rollouts that one worker keeps in flight."""
    retries: int = Field(2, ge=0)
    """Attempts to replace a rollout that infrastructure failed, before it is masked."""
    temperature: float = Field(1.0, gt=0)
    """Of sampling; the trainer's log-probs are taken at the same one."""
    ratio_cap: float = Field(2.0, gt=1)
    """Truncation of the importance ratio between trainer and engine."""
    trust: tuple[Below, Above] = Field((0.8, 1.28), strict=False)
    """Ratios beyond which a token is pushed no further down, or up."""
    optimizer: OptimizerRecipe = OptimizerRecipe(name="adamw", lr=4e-4, warmup_steps=4, final_lr_share=1.0)
    minibatches: int = Field(1, ge=1)
    """Optimizer steps per batch, split by prompt."""
    min_spread: float = Field(0.05, ge=0)
    """Groups whose rewards all lie within this of each other are dropped: they have (almost) nothing to teach."""
    drop_unsolved: bool = True
    """Groups in which nothing was solved are dropped: what sets such rollouts apart is how cheaply they failed, and who
    trains on that learns to give up."""
    microbatch_tokens: int = Field(16_384, ge=64)
    """Padded tokens of one forward pass of the trainer."""
    loss_constant: float = Field(5000.0, gt=0)
    """Summed token losses are divided by this constant, never by a sequence's own length."""
    replay: ReplayRecipe = ReplayRecipe()
    reward: RewardRecipe = RewardRecipe()
    probe_every: int = Field(10, ge=1)
    """Every so many steps the same batch is also passed without replay, with it, and with its filter, to compare the
    mismatch with the engine."""
    trainer_threads: int = Field(1, ge=0)
    """Threads of the trainer while the engine samples beside it; 0 takes every core."""
    evaluate_every: int = Field(10, ge=0)
    """Evaluate on the dev split before the first step, every so many steps, and after the last; 0 never."""
    evaluate_after: bool = False
    """Have those evaluations wait until RL has ended, each with exactly the weights of its step: none of RL's time goes
    into them, and nothing is seen on the way."""
    evaluate_samples: int = Field(4, ge=1)
    """Rollouts per dev task in those evaluations; 16 show a best of 16, and take their time."""
    keep_checkpoints: int = Field(2, ge=1)
    """Checkpoints of the trainer kept on disk; one is written at every step."""
