"""What pretraining and RL share, and the supervised stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from etude.recipe.section import Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerRecipe(Section):
    name: Literal["adamw", "muon"] = "adamw"
    """"muon" orthogonalises matrices per head and per expert; embeddings, norms and routers stay with AdamW."""
    lr: float = Field(4e-4, gt=0)
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), strict=False)
    """Decay of AdamW's two moments."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Nesterov momentum of muon."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled from the gradient."""
    grad_clip: float = Field(1.0, gt=0)
    """Largest norm of the whole gradient."""
    warmup_steps: int = Field(10, ge=0)
    """Steps over which lr rises from zero."""
    final_lr_share: float = Field(0.1, ge=0, le=1)
    """The schedule decays linearly to this share of lr; 1 keeps it constant."""


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
    """A checkpoint is written at the first step after this many seconds; 0 writes one at every step."""
    log_every: int = Field(5, ge=1)
    """Steps between two lines of metrics."""


class PretrainRecipe(StageRecipe):
    lookup_share: float = Field(0.2, ge=0, le=1)
    """Share of the steps, at the start, that read short look-up documents only, at half the length: copying first."""
    balance_rate: float = Field(1e-3, ge=0)
    """Step of the router's bias update that balances the experts."""


class LongRecipe(StageRecipe):
    factor: int = Field(4, ge=1)
    """Context extension by YaRN: base length times this."""


class MtpRecipe(StageRecipe):
    joint_steps: int = Field(0, ge=0)
    """After the heads alone, steps in which they train jointly with the trunk."""


class SftRecipe(StageRecipe):
    demonstrations: int = Field(3000, ge=1)
    """Passed episodes of the oracle to learn from."""
    other_token_loss: float = Field(0.0, ge=0, le=1)
    """Weight of the loss on tokens that the agent did not produce; 0 masks tool output."""
    draft_loss: float = Field(1.0, ge=0)
    """Weight of the loss that keeps the MTP heads in step with the changing trunk; they alone learn from it."""
    measure_every: int = Field(8, ge=0)
    """Every so many reports the loss on held-out demonstrations is measured too, to show where it ceases to fall; 0
    measures it before and after only."""
    kinds: list[str] = []
    """Kinds of task that demonstrations cover; empty means all."""
    rewrites: float = Field(0.15, ge=0, le=1)
    """Share of the demonstrations that write the failing function anew. The others change the wrong line alone, as
    people do; which of the two serves this agent better is left for RL to find."""


class ContinuedRecipe(Section):
    """SFT continued in place of RL, for as long as RL took: what practice is worth without reinforcement. In rounds:
    rollouts of train tasks, those that passed kept; fresh demonstrations; one pass over both."""

    seconds: float = Field(0.0, ge=0)
    """Wall-clock of the stage, half a round more or less, since rounds are finished. 0 leaves the stage out, and RL
    follows SFT."""
    prompts: int = Field(32, ge=1)
    """Train tasks sampled in one round."""
    samples: int = Field(8, ge=1)
    """Rollouts of each."""
    demonstrations: int = Field(256, ge=1)
    """Fresh ones of one round, of the kinds that SFT had, on tasks that nothing else uses."""
    optimizer: OptimizerRecipe = OptimizerRecipe(name="muon", lr=1e-3)
    """Its rate decays with the time used."""
