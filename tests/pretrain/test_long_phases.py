"""The long stage in phases: each at its own length and positions, and stopping between them changes no bit."""

from __future__ import annotations

import shutil

import pytest

from etude.model import load_hf
from etude.pretrain import run_stage
from etude.recipe import RecipeError, load_recipe
from etude.recipe.training import LongRecipe

from .bits import stage_bits
from .make import make_run

PHASES = [{"steps": 2, "batch": 2, "length": 128, "factor": 2}, {"steps": 2, "batch": 1, "length": 256, "factor": 4}]


def test_phases_follow_one_another_and_resume_to_the_same_bits(tmp_path) -> None:
    run, small = make_run(tmp_path, pretrain={"steps": 2, "lookup_share": 0.0})
    long = LongRecipe.model_validate({"phases": PHASES, "log_every": 1, "checkpoint_seconds": 0.0})
    recipe = small.model_copy(update={"long": long, "stages": ["pretrain", "long", "sft"]})
    for _ in run_stage("pretrain", run, recipe):
        pass
    shutil.copytree(run, again := tmp_path / "again")
    *_, last = run_stage("long", run, recipe)
    assert (last["step"], last["total"]) == (4, 4)
    config = load_hf(run / "stages" / "long" / "model").config
    assert (config.rope.scaling.factor, config.rope.scaling.original_max_position_embeddings) == (4.0, 64)
    for stop in (1, 3):
        for progress in run_stage("long", again, recipe):
            if progress["loss"] is not None and progress["step"] == stop:
                break
    list(run_stage("long", again, recipe))
    assert stage_bits(again, "long") == stage_bits(run, "long")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("long.phases=[{steps=1, length=512, factor=2}, {steps=1, length=512, factor=4}]", "rising lengths"),
        ("long.phases=[{steps=1, length=512, factor=4}, {steps=1, length=999, factor=2}]", "do not fall"),
        ("long.phases=[{steps=1, length=2048, factor=4}]", "a length of 2048 must not exceed"),
    ],
)
def test_phases_that_cannot_follow_are_refused(override, said, tmp_path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('name = "r"\n')
    with pytest.raises(RecipeError, match=said):
        load_recipe(file, [override])
    with pytest.raises(RecipeError, match="leave out steps = 7"):
        load_recipe(file, ["long.phases=[{steps=1, length=512, factor=4}]", "long.steps=7"])
