"""Recipe section for LoRA: training low-rank adapters of a model's weights in place of the weights themselves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section

LoraTarget = Literal["attention", "mlp", "experts", "shared"]


class LoraRecipe(Section):
    """With a rank, all training stages train adapters: to each targeted matrix W they add alpha / rank * B A, where A
    has `rank` rows and B as many columns. Everything else stays as the model of `model.from` has it. A run's stages
    train the same adapters one after the other, and store nothing else."""

    rank: int = Field(0, ge=0)
    """Rank of the adapters. 0, the default, trains all parameters instead."""
    alpha: float = Field(16.0, gt=0)
    """The adapters' outputs are multiplied by alpha / rank."""
    targets: list[LoraTarget] = ["attention", "mlp"]
    """Matrices that get adapters: "attention" (all projections), "mlp" (dense feed-forwards), "experts" (each routed
    expert its own) and "shared" (shared experts). MTP heads get those of their layer. Routers, norms, the embedding and
    the output head never have any."""

    @model_validator(mode="after")
    def _consistent(self) -> LoraRecipe:
        usual = type(self).model_fields
        changed = [name for name in ("alpha", "targets") if getattr(self, name) != usual[name].default]
        if not self.rank and changed:
            raise ValueError(f"{changed[0]} has no meaning with rank = 0, which trains all parameters")
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets must name at least one kind of matrix, each once, found {self.targets}")
        return self
