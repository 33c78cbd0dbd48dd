"""Which precisions a recipe may ask for, and that runs from before there was a choice go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.lineage import require_supported
from etude.lineage.state import recipe_digest
from etude.model import KernelUnavailable
from etude.recipe import Recipe, RecipeError, load_recipe

TINY = Path("recipes/tiny.toml")


def tiny(*overrides: str) -> Recipe:
    return load_recipe(TINY, overrides)


def test_what_a_cpu_cannot_do_is_refused_unless_it_may_be_emulated() -> None:
    with pytest.raises(KernelUnavailable, match=r'^precision\.experts = "mxfp8": .* set precision\.emulate = true .*$'):
        require_supported(tiny("precision.experts=mxfp8"))
    require_supported(tiny("precision.experts=mxfp8", "precision.emulate=true"))
    require_supported(tiny())


def test_kernels_are_refused_at_once_in_a_dtype_that_they_do_not_take() -> None:
    kernels = ("precision.kernels=reference",)
    with pytest.raises(KernelUnavailable, match=r"kernels take bfloat16, not float32; set compute\.dtype"):
        require_supported(tiny(*kernels, "compute.dtype=float32"))
    require_supported(tiny(*kernels, "compute.dtype=bfloat16"))
    require_supported(tiny(*kernels, "compute.dtype=auto"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["precision.reciprocal_bits=20"], "reciprocal_bits affects NVFP4 only"),
        (["precision.experts=mxfp8", "precision.reciprocal_bits=20"], "reciprocal_bits affects NVFP4 only"),
        (["precision.emulate=false", 'precision.also=["shared"]'], "rounds nothing without emulate"),
        (["precision.experts=nvfp4_tensor", "precision.invariant=true"], "invariant cannot be combined"),
        (["precision.experts=nvfp4", "model.moe_intermediate_size=48"], "multiples"),
        (["precision.experts=int8"], "precision.experts"),
        (["precision.kernels=cutlass"], "precision.kernels"),
        (["precision.experts=mxfp8", "precision.kernels=torch"], "cannot be combined with emulate = true"),
        (["precision.experts=mxfp8", "precision.kernels=triton"], 'need kernels = "reference" if emulated'),
        (
            ["precision.experts=mxfp8", "precision.emulate=false", "precision.kernels=reference"],
            '"triton" if not',
        ),
        (["precision.experts=mxfp8", "precision.emulate=false", 'precision.also=["shared"]'], "routed experts only"),
        (
            ["precision.emulate=false", "precision.kernels=triton", "precision.invariant=true"],
            "kernels are not batch-invariant",
        ),
        (["precision.kernels=triton"], 'need kernels = "reference" if emulated'),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tiny("precision.emulate=true", *overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["experts=nvfp4", 'also=["shared"]', "reciprocal_bits=22", "emulate=true"],
            "routed experts, shared: forward nvfp4, backward mxfp8, reciprocals of 22 bits, emulated",
        ),
        (["experts=fp8_block"], "routed experts: forward fp8_block, backward fp8_block"),
        (
            ["experts=mxfp8", "kernels=triton"],
            "routed experts: forward mxfp8, backward mxfp8, codes widened to bf16",
        ),
        (["invariant=true"], "no matmul is rounded, batch-invariant"),
        (
            ["invariant=true", "since=rl", "experts=mxfp8", "emulate=true"],
            "routed experts: forward mxfp8, backward mxfp8, emulated, batch-invariant, since rl",
        ),
    ],
)
def test_it_says_what_is_rounded(overrides: list[str], said: str) -> None:
    assert str(tiny(*(f"precision.{one}" for one in overrides)).precision) == said


def test_fp8_blocks_fit_any_width() -> None:
    assert tiny("precision.experts=fp8_block", "model.moe_intermediate_size=48").precision.experts == "fp8_block"


def test_what_is_named_as_before_there_were_names_is_the_same_stage() -> None:
    rounded = ("precision.experts=mxfp8", "precision.emulate=true")
    assert "kernels" not in tiny(*rounded).precision.made_from()
    named = tiny(*rounded, "precision.kernels=reference")
    assert recipe_digest(named, ("precision",)) != recipe_digest(tiny(*rounded), ("precision",))


def test_a_stage_made_before_there_was_a_choice_is_the_same_stage() -> None:
    assert recipe_digest(tiny(), ("model", "compute", "precision")) == recipe_digest(tiny(), ("model", "compute"))
    rounded = tiny("precision.experts=mxfp8", "precision.emulate=true")
    assert recipe_digest(rounded, ("model", "precision")) != recipe_digest(tiny(), ("model", "precision"))
