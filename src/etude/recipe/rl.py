"""Recipe sections for reinforcement learning and the store of weight versions."""

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
    """URL or folder of the store of weight versions; empty means the run's own folder."""
    anchor_every: int = Field(25, ge=1)
    """Every so many versions the weights are stored in full; the versions between are deltas."""

    def place(self, own: Path) -> str:
        """Return where a run stores its weight versions; `own` is the run's default folder for them."""
        return self.store or str(own)


class LengthCostRecipe(Section):
    """Cost of a rollout's length: C(x) = ((1 + k x)^(1-q) - 1) / (k (1-q)), where the effort x is a weighted sum of its
    tokens, tool calls and turns."""

    scale: float = Field(0.02, ge=0)
    """Weight of the cost in the reward."""
    k: float = Field(0.5, gt=0)
    """How soon the cost starts to flatten; with a larger k it does so at less effort."""
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
    """Reward of solving the task. All costs except `kl` together are kept below half of it."""
    truncated: float = Field(0.1, ge=0)
    """Cost of running out of a budget (turns, tokens, calls...) instead of finishing."""
    false_claim: float = Field(0.1, ge=0)
    """Cost of ending the rollout within its budget without having solved the task. Otherwise giving up early would be
    the cheapest way to fail."""
    invalid_call: float = Field(0.02, ge=0)
    """Cost of each malformed tool call; at most five count."""
    length: LengthCostRecipe = LengthCostRecipe()
    kl: float = Field(0.0, ge=0)
    """Weight of the KL penalty (the k1 estimate summed over a rollout) against the policy at the start of RL. Unlike
    the costs above it is not bounded; 0 turns it off."""


class ReplayRecipe(Section):
    mode: Literal["off", "on", "filter"] = "filter"
    """Router replay: whether the trainer uses the experts that the engine chose for each token. "filter" does, except
    for implausible ones (see `threshold`)."""
    threshold: float = Field(0.5, gt=0, le=1)
    """In mode "filter", a replayed expert is refused if its score is below this share of the weakest score among the
    trainer's own top-k choice."""


class RlRecipe(Section):
    mode: Literal["async", "sync"] = "async"
    """"async" samples and trains at the same time. "sync" alternates between them and is bit-reproducible."""
    steps: int = Field(30, ge=0)
    """RL steps. Each trains on one batch of rollouts and publishes one version of the weights."""
    prompts_per_step: int = Field(16, ge=1)
    """Tasks per step; each task is used once."""
    group: int = Field(8, ge=2)
    """Rollouts per task. Each one's advantage is computed from the rewards of its group."""
    max_staleness: int = Field(2, ge=0)
    """Largest number of weight versions between the start of a group's rollouts and the step that trains on them."""
    workers: int = Field(1, ge=1)
    """Worker processes that run rollouts."""
    rollouts_per_worker: int = Field(192, ge=1)
    """Rollouts that one worker runs at the same time."""
    retries: int = Field(2, ge=0)
    """How often a rollout that infrastructure failed is sampled again before it is masked."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the trainer computes log-probs at the same one."""
    ratio_cap: float = Field(2.0, gt=1)
    """Upper bound of the importance ratio between trainer and engine; larger ratios are truncated to it."""
    trust: tuple[Below, Above] = Field((0.8, 1.28), strict=False)
    """Trust region of the importance ratio: a token below the first bound is not made less likely, one above the second
    not more likely."""
    optimizer: OptimizerRecipe = OptimizerRecipe(name="adamw", lr=4e-4, warmup_steps=4, final_lr_share=1.0)
    minibatches: int = Field(1, ge=1)
    """Optimizer steps per batch, which is split by prompt."""
    min_spread: float = Field(0.05, ge=0)
    """Groups whose highest and lowest reward differ by no more than this are dropped, as there is little to learn from
    them."""
    drop_unsolved: bool = True
    """Drop groups in which no rollout solved the task. Their rewards differ only in how cheaply each rollout failed,
    and training on that teaches the agent to give up."""
    microbatch_tokens: int = Field(16_384, ge=64)
    """Tokens per forward pass of the trainer, padding included."""
    loss_constant: float = Field(5000.0, gt=0)
    """Constant by which summed token losses are divided, in place of each sequence's own length."""
    replay: ReplayRecipe = ReplayRecipe()
    reward: RewardRecipe = RewardRecipe()
    probe_every: int = Field(10, ge=1)
    """Every so many steps the batch is evaluated three times (without replay, with replay, with its filter) to compare
    how far trainer and engine log-probs differ."""
    trainer_threads: int = Field(1, ge=0)
    """CPU threads of the trainer while the engine samples; 0 means every core."""
    evaluate_every: int = Field(10, ge=0)
    """Evaluate on the dev split before the first step, every so many steps, and after the last; 0 means never."""
    evaluate_after: bool = False
    """Run the dev evaluations after RL has ended, each with exactly the weights of its step. They then take no time
    from RL, but show nothing while it runs."""
    evaluate_samples: int = Field(4, ge=1)
    """Rollouts per dev task in the dev evaluations, and the k of their pass@k."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many of the trainer's checkpoints stay on disk; one is written at every step."""
