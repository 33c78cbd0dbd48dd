"""Recipe sections for the optimizer and the supervised stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from etude.recipe.section import Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerRecipe(Section):
    name: Literal["adamw", "muon"] = "adamw"
    """"muon" orthogonalises the updates of matrices, per head and per expert; embeddings, norms and routers use AdamW.
    """
    lr: float = Field(4e-4, gt=0)
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), strict=False)
    """Decay rates of AdamW's first and second moment."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Nesterov momentum of Muon."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay, as in AdamW."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest global norm of the gradient; a larger gradient is scaled down to it."""
    warmup_steps: int = Field(10, ge=0)
    """Steps over which the learning rate rises linearly from zero."""
    final_lr_share: float = Field(0.1, ge=0, le=1)
    """After warm-up the learning rate decays linearly to this share of lr; 1 keeps it constant."""


class StageRecipe(Section):
    """One supervised stage: a number of steps over packed sequences."""

    steps: int = Field(100, ge=0)
    """Optimizer steps of the stage."""
    batch: int = Field(8, ge=1)
    """Sequences per step."""
    length: int = Field(256, ge=16)
    """Tokens per sequence."""
    optimizer: OptimizerRecipe = OptimizerRecipe(name="muon", lr=6e-3)
    checkpoint_seconds: float = Field(20.0, ge=0)
    """Seconds between checkpoints: one is written at the first step after them; 0 writes one at every step."""
    log_every: int = Field(5, ge=1)
    """Steps between two rows of metrics."""


class PretrainRecipe(StageRecipe):
    lookup_share: float = Field(0.2, ge=0, le=1)
    """Share of the steps, at the start, that train on short look-up documents only, at half the length. It teaches the
    network to copy before anything else."""
    balance_rate: float = Field(1e-3, ge=0)
    """Step size of the update of the router's bias, which balances the load of the experts."""


class LongRecipe(StageRecipe):
    factor: int = Field(4, ge=1)
    """Factor of the YaRN context extension: sequences may be up to pretrain.length times this long."""


class MtpRecipe(StageRecipe):
    joint_steps: int = Field(0, ge=0)
    """Further steps, after those that train the MTP heads alone, in which heads and trunk train jointly."""


class SftRecipe(StageRecipe):
    demonstrations: int = Field(3000, ge=1)
    """Number of passed oracle rollouts to train on."""
    other_token_loss: float = Field(0.0, ge=0, le=1)
    """Loss weight of tokens that the agent did not produce, tool output for example; 0 masks them."""
    draft_loss: float = Field(1.0, ge=0)
    """Weight of the loss that keeps the MTP heads in step with the changing trunk. Only the heads get its gradient."""
    measure_every: int = Field(8, ge=0)
    """The loss on held-out demonstrations is measured at every so many rows of metrics, to show where it stops falling.
    0 measures it before and after the stage only."""
    kinds: list[str] = []
    """Kinds of bug that demonstrations cover; empty means all kinds of the train tasks."""
    rewrites: float = Field(0.15, ge=0, le=1)
    """Share of the demonstrations that rewrite the whole failing function. The others change only the wrong line, as
    people do. RL finds out which of the two works better for this agent."""


class ContinuedRecipe(Section):
    """SFT continued in place of RL, as a baseline for RL: what the same time of supervised training achieves.

    Each round samples rollouts on train tasks and keeps those that passed, generates new demonstrations, and trains one
    pass over both.
    """

    seconds: float = Field(0.0, ge=0)
    """Wall-clock seconds of the stage, give or take half a round, because rounds are never cut short. With 0, the
    default, there is no such stage and RL follows SFT."""
    prompts: int = Field(32, ge=1)
    """Train tasks sampled in one round."""
    samples: int = Field(8, ge=1)
    """Rollouts per task."""
    demonstrations: int = Field(256, ge=1)
    """Demonstrations to generate per round: SFT's bug kinds, on tasks reserved for this."""
    optimizer: OptimizerRecipe = OptimizerRecipe(name="muon", lr=1e-3)
    """Its learning rate decays with the share of `seconds` used so far, instead of with steps."""
