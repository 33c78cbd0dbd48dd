"""The recipe of one run: every stage from random weights to an evaluated agent."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from etude.recipe.acting import EngineRecipe, EvaluationRecipe, HarnessRecipe, SandboxRecipe, TasksRecipe
from etude.recipe.compute import ClusterRecipe, ComputeRecipe
from etude.recipe.corpus import CorpusRecipe, TokenizerRecipe
from etude.recipe.model import ModelRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.recipe.rl import RlRecipe, WeightsRecipe
from etude.recipe.section import Section
from etude.recipe.training import ContinuedRecipe, LongRecipe, MtpRecipe, PretrainRecipe, SftRecipe

SCHEMA: Literal[1] = 1


class Recipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"precision"})
    schema_version: Literal[1] = Field(SCHEMA, alias="schema")
    """Version of the recipe format, named `schema` in the file. A recipe with a newer version is refused."""
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Name of the run and of its folder."""
    seed: int = Field(1, ge=0)
    """Random seed of tasks, corpus, initial weights, prompt order and sampling."""
    compute: ComputeRecipe = ComputeRecipe()
    cluster: ClusterRecipe = ClusterRecipe()
    precision: PrecisionRecipe = PrecisionRecipe()
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

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        longest = self.pretrain.length * self.long.factor
        if self.long.length > longest:
            raise ValueError(f"long.length must not exceed pretrain.length x long.factor = {longest}")
        if self.engine.context > self.model.max_position_embeddings:
            raise ValueError("engine.context must not exceed model.max_position_embeddings")
        if self.sandbox.hosts > self.cluster.nodes:
            raise ValueError("sandbox.hosts must not exceed cluster.nodes")
        widths = (self.model.hidden_size, self.model.moe_intermediate_size)
        if self.precision.experts in ("nvfp4", "nvfp4_tensor", "mxfp8") and any(width % 32 for width in widths):
            raise ValueError(
                "precision.experts rounds blocks of 32 numbers, so model.hidden_size and "
                "model.moe_intermediate_size must be multiples of 32"
            )
        return self
