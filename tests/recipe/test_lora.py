"""Adapters are a choice; what has no meaning with them is refused by name, and runs from before the choice go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.lineage.state import recipe_digest
from etude.recipe import Recipe, RecipeError, load_recipe

HEAD = """name = "r"
stages = ["pretrain", "long", "sft", "rl"]
[model]
from = "x"
[pretrain.optimizer]
name = "adamw"
[long.optimizer]
name = "adamw"
[sft.optimizer]
name = "adamw"
[rl.optimizer]
name = "adamw"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "r.toml").write_text(HEAD)
    return tmp_path / "r.toml"


def test_all_parameters_are_trained_by_default(file: Path) -> None:
    assert load_recipe(file).lora.rank == 0
    adapted = load_recipe(file, ["lora.rank=8", "lora.alpha=4", 'lora.targets=["experts"]'])
    assert recipe_digest(adapted, ["sft", "lora"]) != recipe_digest(adapted, ["sft"])
    plain = Recipe.model_validate({"name": "r"})
    assert recipe_digest(plain, ["sft", "lora"]) == recipe_digest(plain, ["sft"]), "older runs resume"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["lora.rank=-1"], "lora.rank"),
        (["lora.alpha=8"], "alpha has no meaning with rank = 0"),
        (["lora.rank=8", "lora.targets=[]"], "targets must name at least one"),
        (["lora.rank=8", 'lora.targets=["mlp", "mlp"]'], "each once"),
        (["lora.rank=8", 'lora.targets=["head"]'], "lora.targets"),
        (["lora.rank=8", "compute.offload=moments"], "those of adapters are small"),
        (["lora.rank=8", "model.weights=random"], "lora.rank trains adapters of a model's weights"),
        (["lora.rank=8", 'stages=["mtp", "sft"]'], "leave mtp out of stages"),
        (["lora.rank=8", "sft.optimizer.name=muon"], r"sft\.optimizer\.name = muon .* set adamw"),
        (["lora.rank=8", "continued.seconds=9"], r"continued\.optimizer\.name = muon"),
        (["lora.rank=8", "pretrain.balance_rate=0.1"], "pretrain.balance_rate moves routers' biases"),
        (
            ["lora.rank=8", 'lora.targets=["experts"]', "precision.experts=mxfp8", "precision.emulate=true"],
            "lora.targets names experts, which compute in plain torch",
        ),
        (["lora.rank=8", 'lora.targets=["experts"]', "precision.kernels=reference"], "lora.targets names experts"),
    ],
)
def test_what_makes_no_sense_is_refused(file: Path, overrides: list[str], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        load_recipe(file, overrides)


def test_what_no_stage_reads_is_not_asked_about(file: Path) -> None:
    load_recipe(file, ["lora.rank=8", 'stages=["sft"]', "rl.optimizer.name=muon"])
    load_recipe(file, ["lora.rank=8", "precision.experts=mxfp8", "precision.emulate=true"])
