"""Recipe sections for reinforcement learning and the store of weight versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from etude.recipe.section import Section
from etude.recipe.training import OptimizerRecipe

Below = Annotated[float, Field(ge=0, lt=1)]
Above = Annotated[float, Field(gt=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class WeightsRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"keep"})

    store: str = ""
    """URL or folder of the store of weight versions; empty means a folder of the run."""
    anchor_every: int = Field(25, ge=1)
    """Interval, in versions, at which the weights are stored in full; versions in between are stored as deltas."""
    keep: int = Field(0, ge=0)
    """How many of the newest versions RL keeps in the store; 0 keeps all. Those that an engine reads or holds, that
    rollouts in flight were sampled with, or that will be evaluated stay in any case, each with the versions that it
    stands on."""

    def place(self, own: Path) -> str:
        """Return where a run stores its weight versions; `own` is the run's default folder for them."""
        return self.store or str(own)


class LengthCostRecipe(Section):
    """Cost of a rollout's length: C(x) = ((1 + k x)^(1-q) - 1) / (k (1-q)). The effort x is a weighted sum of the
    rollout's tokens, tool calls and turns."""

    scale: float = Field(0.02, ge=0)
    """Weight of the length cost in the reward."""
    k: float = Field(0.5, gt=0)
    """The larger k, the smaller the effort (the rollout's weighted length) at which the length cost begins to
    flatten."""
    q: float = Field(0.5, ge=0)
    """How much the length cost flattens as the effort (the rollout's weighted length) grows. The cost is linear for
    q = 0, logarithmic for q = 1, and bounded for larger q."""
    thinking_tokens: float = Field(0.01, ge=0)
    """Weight of one thinking token in the effort that the length cost penalises. The unit of effort is arbitrary; by
    default one turn counts 1."""
    call_tokens: float = Field(0.01, ge=0)
    """Weight of one token of a tool call in the effort that the length cost penalises."""
    output_tokens: float = Field(0.002, ge=0)
    """Weight of one token of tool output in the effort that the length cost penalises."""
    message_tokens: float = Field(0.01, ge=0)
    """Weight of one token of the model's messages, outside thinking and tool calls, in the effort that the length cost
    penalises."""
    tool_calls: float = Field(0.0, ge=0)
    """Weight of one tool call in the effort that the length cost penalises."""
    turns: float = Field(1.0, ge=0)
    """Weight of one turn in the effort that the length cost penalises."""


class RewardRecipe(Section):
    passed: float = Field(1.0, gt=0)
    """Reward for solving the task. All costs except `kl` together are kept below half of it."""
    truncated: float = Field(0.1, ge=0)
    """Cost of running out of a budget (turns, tokens, calls...) instead of finishing."""
    false_claim: float = Field(0.1, ge=0)
    """Cost of ending the rollout within its budget without having solved the task. Without this cost, giving up early
    would be the cheapest way to fail."""
    invalid_call: float = Field(0.02, ge=0)
    """Cost of each malformed tool call; at most five count."""
    length: LengthCostRecipe = LengthCostRecipe()
    kl: float = Field(0.0, ge=0)
    """Weight of the KL penalty (the k1 estimate summed over a rollout) against the policy at the start of RL. Unlike
    the other costs it is not bounded; 0 turns it off."""


class ReplayRecipe(Section):
    mode: Literal["off", "on", "filter"] = "filter"
    """Router replay: whether the trainer uses the experts that the engine chose for each token. "filter" uses them
    except those with a low score in the trainer (see `threshold`). A network without experts has nothing to replay."""
    threshold: float = Field(0.5, gt=0, le=1)
    """In mode "filter", a replayed expert is refused if its score is below this fraction of the lowest score among the
    trainer's own top-k experts."""


class RlRecipe(Section):
    # RL without draft_loss left the MTP heads as they were: another result, but of no other stage or evaluation.
    LATER: ClassVar[frozenset[str]] = frozenset(
        {"trust_by", "trust_difference", "draft_loss", "checkpoint_seconds", "take_turns"}
    )
    FITTING: ClassVar[frozenset[str]] = frozenset({"microbatch_tokens", "take_turns"})
    COMPARED: ClassVar[frozenset[str]] = frozenset({"microbatch_tokens"})

    mode: Literal["async", "sync"] = "async"
    """Whether RL samples and trains at the same time ("async"), or alternates between both ("sync"), which is
    bit-reproducible."""
    steps: int = Field(30, ge=0)
    """Number of RL steps. Each trains on one batch of rollouts and publishes one version of the weights."""
    prompts_per_step: int = Field(16, ge=1)
    """Number of tasks per RL step; each task is used once."""
    group: int = Field(8, ge=2)
    """Number of rollouts per task. The advantage of each rollout is computed from the rewards of its group."""
    max_staleness: int = Field(2, ge=0)
    """Maximum number of weight versions between the start of a group's rollouts and the step that trains on them."""
    workers: int = Field(1, ge=1)
    """Number of worker processes that run rollouts."""
    rollouts_per_worker: int = Field(192, ge=1)
    """Number of rollouts that one worker runs at the same time."""
    retries: int = Field(2, ge=0)
    """How often a rollout is sampled again after an infrastructure failure before it is masked from training."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the trainer computes log-probs at the same temperature."""
    ratio_cap: float = Field(2.0, gt=1)
    """Upper bound of the importance ratio between trainer and engine; larger ratios are truncated to it."""
    trust: tuple[Below, Above] = Field((0.8, 1.28), strict=False)
    """Trust region of the importance ratio: a token whose ratio is below the first bound is not made less likely, and
    a token whose ratio is above the second bound is not made more likely."""
    trust_by: Literal["ratio", "difference"] = "ratio"
    """Whether the trust region bounds the ratio of the trainer's to the engine's probability (`trust`), or their
    difference (`trust_difference`)."""
    trust_difference: tuple[Share, Share] = Field((0.2, 0.2), strict=False)
    """Trust region by difference: a token whose probability has fallen by more than the first bound is not made less
    likely, and a token whose probability has risen by more than the second bound is not made more likely."""
    optimizer: OptimizerRecipe = OptimizerRecipe(name="adamw", lr=4e-4, warmup_steps=4, final_lr_share=1.0)
    draft_loss: float = Field(1.0, ge=0)
    """Weight of the distillation loss that adapts the MTP heads to the changing trunk. Only the heads get its gradient;
    0 leaves them as they are."""
    minibatches: int = Field(1, ge=1)
    """Number of optimizer steps per RL step, each on a part of the batch's prompts."""
    min_spread: float = Field(0.05, ge=0)
    """Minimum difference between the highest and lowest reward of a group. Groups that do not exceed it are dropped,
    because there is little to learn from them."""
    drop_unsolved: bool = True
    """Drop groups in which no rollout solved the task. Their rewards differ only in the cost of failing, and training
    on that teaches the agent to give up."""
    microbatch_tokens: int = Field(16_384, ge=64)
    """Maximum number of tokens per forward pass of the trainer, padding included."""
    loss_constant: float = Field(5000.0, gt=0)
    """Constant by which summed token losses are divided, in place of each sequence's own length."""
    replay: ReplayRecipe = ReplayRecipe()
    reward: RewardRecipe = RewardRecipe()
    probe_every: int = Field(10, ge=1)
    """Number of steps between probes of router replay. A probe computes the batch's log-probs three times (without
    replay, with it, with its filter) and measures how far each differs from the engine's."""
    take_turns: bool = False
    """Whether trainer and engine use a GPU in turns, where it does not hold both at once: while the trainer takes a
    step, the engine stops and moves its weights and cache to the CPU's memory."""
    trainer_threads: int = Field(1, ge=0)
    """Number of CPU threads of the trainer while the engine samples; 0 means one per available core."""
    evaluate_every: int = Field(10, ge=0)
    """Number of RL steps between evaluations on the dev split. The first evaluation comes before RL, the last one after
    it. With 0 there are no such evaluations."""
    evaluate_after: bool = False
    """Run the evaluations on the dev split after RL has ended, instead of during RL. Each then uses exactly the weights
    of the RL step that it belongs to. This takes no time from RL, but shows no results while RL runs."""
    evaluate_samples: int = Field(4, ge=1)
    """Number of rollouts per task in the dev evaluations, which is also the k of their pass@k."""
    checkpoint_seconds: float = Field(20.0, ge=0)
    """Minimum seconds between two checkpoints of the trainer, which are written at the end of a step; 0 writes one at
    every step. Large ones are further apart, so that writing them takes at most a twentieth of the time. After the
    trainer's death the steps since its last checkpoint are trained again, to the same bits."""
    keep_checkpoints: int = Field(2, ge=1)
    """Number of trainer checkpoints to keep on disk."""
