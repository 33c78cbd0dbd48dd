"""The recipe of one run: every stage from random weights to an evaluated agent."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import Field, model_validator

from etude.recipe.acting import EngineRecipe, EvaluationRecipe, HarnessRecipe, SandboxRecipe, TasksRecipe
from etude.recipe.compute import ClusterRecipe, ComputeRecipe
from etude.recipe.corpus import CorpusRecipe, TokenizerRecipe
from etude.recipe.lora import LoraRecipe
from etude.recipe.model import ModelRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.recipe.rl import RlRecipe, WeightsRecipe
from etude.recipe.section import Section
from etude.recipe.training import ContinuedRecipe, LongRecipe, MtpRecipe, OptimizerRecipe, PretrainRecipe, SftRecipe

SCHEMA: Literal[1] = 1
TrainingStage = Literal["pretrain", "long", "mtp", "sft", "rl"]
TRAINING: tuple[TrainingStage, ...] = get_args(TrainingStage)
"""The training stages, in order."""


class Recipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"precision", "stages", "lora"})
    schema_version: Literal[1] = Field(SCHEMA, alias="schema")
    """Version of the recipe format, named `schema` in the file. A recipe with a newer version is refused."""
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Name of the run and of its folder."""
    seed: int = Field(1, ge=0)
    """Random seed of tasks, corpus, initial weights, prompt order and sampling."""
    stages: list[TrainingStage] = list(TRAINING)
    """The training stages to run, in this order: "pretrain", "long", "mtp", "sft", "rl". Each starts from the model of
    the one before it. Any may be left out, but a new network begins with "pretrain"."""
    compute: ComputeRecipe = ComputeRecipe()
    cluster: ClusterRecipe = ClusterRecipe()
    precision: PrecisionRecipe = PrecisionRecipe()
    lora: LoraRecipe = LoraRecipe()
    model: ModelRecipe = ModelRecipe()
    tokenizer: TokenizerRecipe = TokenizerRecipe()
    corpus: CorpusRecipe = CorpusRecipe()
    pretrain: PretrainRecipe = PretrainRecipe()
    long: LongRecipe = LongRecipe()
    mtp: MtpRecipe = MtpRecipe()
    sft: SftRecipe = SftRecipe()
    tasks: TasksRecipe = TasksRecipe()
    sandbox: SandboxRecipe = SandboxRecipe()
    harness: HarnessRecipe = HarnessRecipe()
    engine: EngineRecipe = EngineRecipe()
    weights: WeightsRecipe = WeightsRecipe()
    rl: RlRecipe = RlRecipe()
    continued: ContinuedRecipe = ContinuedRecipe()
    evaluation: EvaluationRecipe = EvaluationRecipe()

    @property
    def training(self) -> list[str]:
        """The names of the stages that train, in order: `continued` takes the place of `rl` if the recipe sets its
        seconds."""
        return ["continued" if stage == "rl" and self.continued.seconds else stage for stage in self.stages]

    @property
    def models(self) -> list[str]:
        """The names of the stages that leave a model, in order: `base`, if the recipe names a model, and those that
        train."""
        return ["base", *self.training] if self.model.from_ else self.training

    @property
    def own_tokenizer(self) -> bool:
        """Whether the run trains its own tokenizer, since no model brings one."""
        return not self.model.from_ or self.model.weights == "random"

    @property
    def reads_corpus(self) -> bool:
        return self.own_tokenizer or any(stage in self.stages for stage in ("pretrain", "long", "mtp"))

    def before(self, stage: str) -> str:
        """Return the stage whose model the training stage `stage` starts from; "" if it starts from random weights."""
        names = ["", *self.models]
        return names[names.index(stage, 1) - 1]

    @property
    def evaluated(self) -> list[str]:
        """The stages whose models the last evaluation compares: the last one and the one before it."""
        return self.models[-2:]

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if not self.stages or self.stages != [stage for stage in TRAINING if stage in self.stages]:
            raise ValueError(f"stages must name some of {', '.join(TRAINING)}, in this order")
        if not self.model.from_ and self.stages[0] != "pretrain":
            raise ValueError("stages must begin with pretrain, unless model.from names a model to begin with")
        if self.continued.seconds and "rl" not in self.stages:
            raise ValueError("continued.seconds puts continued SFT in the place of rl, which stages leaves out")
        own_positions = self.own_tokenizer and "long" in self.stages  # a published model has its own
        for phase in self.long.lengths if own_positions else []:
            if phase.length > (longest := self.pretrain.length * phase.factor):
                wrong = f"long.phases: a length of {phase.length}" if self.long.phases else "long.length"
                factor = "its factor" if self.long.phases else "long.factor"
                raise ValueError(f"{wrong} must not exceed pretrain.length x {factor} = {longest}")
        if not self.model.from_ and self.engine.context > self.model.max_position_embeddings:
            raise ValueError("engine.context must not exceed model.max_position_embeddings")
        if self.sandbox.hosts > self.cluster.nodes:
            raise ValueError("sandbox.hosts must not exceed cluster.nodes")
        widths = (self.model.hidden_size, self.model.moe_intermediate_size)
        blocks = self.precision.experts in ("nvfp4", "nvfp4_tensor", "mxfp8") and not self.model.from_
        if blocks and any(width % 32 for width in widths):
            raise ValueError(
                "precision.experts rounds blocks of 32 numbers, so model.hidden_size and "
                "model.moe_intermediate_size must be multiples of 32"
            )
        self._require_lora_makes_sense()
        return self

    def _require_lora_makes_sense(self) -> None:
        """Raise ValueError for settings that have no meaning where adapters are trained."""
        if not self.lora.rank:
            return
        if self.own_tokenizer:
            raise ValueError("lora.rank trains adapters of a model's weights: name that model in model.from")
        if "mtp" in self.stages:
            raise ValueError("lora.rank trains adapters, and stage mtp new MTP heads: leave mtp out of stages")
        for stage in self.training:
            optimizer: OptimizerRecipe = getattr(self, stage).optimizer
            if optimizer.name == "muon":
                raise ValueError(
                    f"{stage}.optimizer.name = muon orthogonalises whole matrices, and lora.rank trains factors of "
                    "them: set adamw"
                )
        if self.pretrain.balance_rate != PretrainRecipe().balance_rate:
            raise ValueError("pretrain.balance_rate moves routers' biases, which stay as they are under lora.rank")
        if self.compute.offload != "none":
            raise ValueError(
                "compute.offload moves optimizer states to the host; those of adapters are small: leave it out"
            )
        if "experts" in self.lora.targets and (self.precision.rounds or self.precision.by_kernels):
            raise ValueError(
                "lora.targets names experts, which compute in plain torch then: leave out experts there, or "
                "precision.experts, precision.emulate and precision.kernels"
            )
