"""Recipe sections for the optimizer and the supervised stages."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"moments"})

    name: Literal["adamw", "muon"] = "adamw"
    """Optimizer. "muon" orthogonalises the updates of matrices, per head and per expert, and uses AdamW for embeddings,
    norms and routers."""
    lr: float = Field(4e-4, gt=0)
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), strict=False)
    """Decay rates of AdamW's first and second moment."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Nesterov momentum of Muon."""
    moments: Literal["float32", "8bit"] = "float32"
    """How moments are stored. AdamW has two per parameter, Muon one: 8 or 4 bytes in float32. "8bit" takes a quarter of
    it, with a scale for every 256 numbers, and rounds them after each step."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay, as in AdamW."""
    grad_clip: float = Field(1.0, gt=0)
    """Maximum global norm of the gradient; a larger gradient is scaled down to it. The gradient of MTP heads has a norm
    of its own."""
    warmup_steps: int = Field(10, ge=0)
    """Number of steps at the start over which the learning rate rises linearly from zero."""
    final_lr_share: float = Field(0.1, ge=0, le=1)
    """Fraction of `lr` to which the learning rate decays linearly after warm-up; 1 keeps it constant."""

    @property
    def moment_bytes(self) -> float:
        """Bytes of one moment of a parameter."""
        return 4.0 if self.moments == "float32" else 1.0 + 4.0 / 256


class StageRecipe(Section):
    """Settings that all supervised stages share. A stage trains for a number of steps on packed sequences."""

    LATER: ClassVar[frozenset[str]] = frozenset({"microbatch_tokens"})
    FITTING: ClassVar[frozenset[str]] = LATER
    COMPARED: ClassVar[frozenset[str]] = LATER

    steps: int = Field(100, ge=0)
    """Number of optimizer steps of the stage."""
    batch: int = Field(8, ge=1)
    """Number of packed sequences per step."""
    length: int = Field(256, ge=16)
    """Number of tokens per packed sequence."""
    microbatch_tokens: int = Field(16_384, ge=64)
    """Maximum number of tokens per forward pass: a step goes through its sequences in as many passes as it takes. A
    longer sequence is one pass."""
    optimizer: OptimizerRecipe = OptimizerRecipe(name="muon", lr=6e-3)
    checkpoint_seconds: float = Field(20.0, ge=0)
    """Minimum seconds between two checkpoints, which are written at the end of a step; 0 writes one at every step."""
    log_every: int = Field(5, ge=1)
    """Number of steps between two rows of metrics."""

    @property
    def largest_pass(self) -> tuple[int, int, int]:
        """Rows and tokens per row of the largest forward pass, and the number of passes of its step."""
        return self._largest(self.batch, self.length)

    def _largest(self, batch: int, length: int) -> tuple[int, int, int]:
        rows = min(batch, max(1, self.microbatch_tokens // length))
        return rows, length, -(-batch // rows)


class PretrainRecipe(StageRecipe):
    lookup_share: float = Field(0.2, ge=0, le=1)
    """Share of the steps, at the start, that train only on short look-up documents (a listing and questions about it),
    in rows of half the length. They teach the network to copy before anything else."""
    balance_rate: float = Field(1e-3, ge=0)
    """Step size with which the routers' biases are updated to balance the experts' load. Routers without biases are
    balanced by the loss that their config.json asks for."""


class LongPhase(Section):
    """One phase of the long-context extension, at one length."""

    steps: int = Field(ge=1)
    """Number of optimizer steps of the phase."""
    batch: int = Field(1, ge=1)
    """Number of packed sequences per step."""
    length: int = Field(ge=16)
    """Number of tokens per packed sequence, more than in the phase before."""
    factor: int = Field(1, ge=1)
    """Factor by which the context that the model had before the stage is extended; 1 leaves its positions as they
    are."""


class LongRecipe(StageRecipe):
    LATER: ClassVar[frozenset[str]] = StageRecipe.LATER | {"phases"}

    factor: int = Field(4, ge=1)
    """Factor of the context extension: sequences may have up to `factor` times the tokens that the model was trained
    with before. A new model's positions are extended by YaRN, a published one's by its own scaling (YaRN if it has
    none)."""
    phases: list[LongPhase] = []
    """Several lengths, one after the other: 32,768 and then 262,144 tokens, for example. Each phase has its own
    `steps`, `batch`, `length` and `factor`, which then are left out here; the optimizer and its schedule are those of
    the whole stage. Empty means one phase, with the stage's own values."""

    @property
    def lengths(self) -> list[LongPhase]:
        """The phases in order."""
        own = LongPhase.model_construct(steps=self.steps, batch=self.batch, length=self.length, factor=self.factor)
        return self.phases or [own]

    @property
    def largest_pass(self) -> tuple[int, int, int]:
        return max((self._largest(phase.batch, phase.length) for phase in self.lengths), key=lambda p: p[0] * p[1])

    @property
    def all_steps(self) -> int:
        return sum(phase.steps for phase in self.lengths)

    @model_validator(mode="after")
    def _rising(self) -> LongRecipe:
        said = [name for name in LongPhase.model_fields if getattr(self, name) != type(self).model_fields[name].default]
        if self.phases and said:
            raise ValueError(f"phases say the {said[0]} of each phase: leave out {said[0]} = {getattr(self, said[0])}")
        for before, after in pairwise(self.phases):
            if after.length <= before.length or after.factor < before.factor:
                raise ValueError("phases must have rising lengths, and factors that do not fall")
        return self


class MtpRecipe(StageRecipe):
    joint_steps: int = Field(0, ge=0)
    """Number of additional steps that train MTP heads and trunk jointly, after those that train the heads alone."""


class SftRecipe(StageRecipe):
    demonstrations: int = Field(3000, ge=1)
    """Number of demonstrations to train on: rollouts in which a scripted expert solved the task."""
    other_token_loss: float = Field(0.0, ge=0, le=1)
    """Loss weight of tokens that the agent did not produce, such as tool output; 0 masks them."""
    draft_loss: float = Field(1.0, ge=0)
    """Weight of the distillation loss that adapts the MTP heads to the changing trunk. Only the heads get its
    gradient."""
    measure_every: int = Field(8, ge=0)
    """The loss on held-out demonstrations is measured every `measure_every` * `log_every` steps, to show where it stops
    falling. 0 measures it only before and after the stage."""
    kinds: list[str] = []
    """Kinds of bug that demonstrations cover; empty means all kinds of the train tasks."""
    rewrites: float = Field(0.15, ge=0, le=1)
    """Share of the demonstrations that rewrite the whole failing function; the others change only the wrong line. RL
    can then learn which of the two works better."""


class ContinuedRecipe(Section):
    """SFT continued in place of RL, as a baseline that shows what supervised training achieves in the same time.

    Each round samples rollouts on train tasks and keeps those that passed, generates new demonstrations, and trains one
    pass over the kept rollouts and the demonstrations.
    """

    seconds: float = Field(0.0, ge=0)
    """Wall-clock seconds of the stage, give or take half a round, because rounds are never cut short. With 0, the
    default, the stage is left out and RL follows SFT."""
    prompts: int = Field(32, ge=1)
    """Number of train tasks per round on which the agent is sampled."""
    samples: int = Field(8, ge=1)
    """Number of rollouts per task in a round."""
    demonstrations: int = Field(256, ge=1)
    """Number of demonstrations to generate per round, on train tasks that are new in every round. They cover the kinds
    of bug that SFT's demonstrations cover."""
    optimizer: OptimizerRecipe = OptimizerRecipe(name="muon", lr=1e-3)
    """Optimizer of continued SFT. Its learning rate decays with the share of `seconds` used so far, not with steps."""
