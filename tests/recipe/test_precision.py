"""Which precisions a recipe may ask for, and that runs from before there was a choice go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.lineage import LineageError, require_supported
from etude.lineage.state import recipe_digest
from etude.recipe import Recipe, RecipeError, load_recipe

TINY = Path("recipes/tiny.toml")


def tiny(*overrides: str) -> Recipe:
    return load_recipe(TINY, overrides)


def test_what_a_cpu_cannot_do_is_refused_unless_it_may_be_emulated() -> None:
    with pytest.raises(LineageError, match=r'^precision\.experts = "mxfp8": .* set precision\.emulate = true .*$'):
        require_supported(tiny("precision.experts=mxfp8"))
    require_supported(tiny("precision.experts=mxfp8", "precision.emulate=true"))
    require_supported(tiny())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["precision.reciprocal_bits=20"], "reciprocal_bits is about NVFP4"),
        (["precision.experts=mxfp8", "precision.reciprocal_bits=20"], "reciprocal_bits is about NVFP4"),
        (['precision.also=["shared"]'], "also rounds like experts, which round nothing"),
        (["precision.experts=nvfp4_tensor", "precision.invariant=true"], "invariant does not go with nvfp4_tensor"),
        (["precision.experts=nvfp4", "model.moe_intermediate_size=48"], "multiples"),
        (["precision.experts=int8"], "precision.experts"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tiny(*overrides, "precision.emulate=true")


def test_fp8_blocks_fit_any_width() -> None:
    assert tiny("precision.experts=fp8_block", "model.moe_intermediate_size=48").precision.experts == "fp8_block"


def test_it_says_what_is_rounded() -> None:
    said = str(tiny("precision.experts=nvfp4", 'precision.also=["shared"]', "precision.reciprocal_bits=22").precision)
    assert said == "routed experts, shared: forward nvfp4, backward mxfp8, reciprocals of 22 bits, emulated"


def test_it_says_that_batches_do_not_matter() -> None:
    assert str(tiny("precision.invariant=true").precision) == "no matmul is rounded, batch-invariant"
    later = tiny("precision.invariant=true", "precision.since=rl", "precision.experts=mxfp8", "precision.emulate=true")
    assert str(later.precision).endswith("emulated, batch-invariant, since rl")


def test_a_stage_made_before_there_was_a_choice_is_the_same_stage() -> None:
    assert recipe_digest(tiny(), ("model", "compute", "precision")) == recipe_digest(tiny(), ("model", "compute"))
    rounded = tiny("precision.experts=mxfp8", "precision.emulate=true")
    assert recipe_digest(rounded, ("model", "precision")) != recipe_digest(tiny(), ("model", "precision"))
