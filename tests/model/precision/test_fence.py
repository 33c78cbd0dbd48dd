"""What is not finite, or cut off, is named, and nothing is written of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from etude.model import (
    ModelConfig,
    Numerics,
    PoisonedWeights,
    Transformer,
    UnsupportedCheckpoint,
    checkpoint_faults,
    load_hf,
    round_with,
    save_hf,
    served_state,
)
from etude.model.precision import STORED, format_named, outer_scale, quantise_nvfp4, stored_tensors
from etude.model.precision.fence import SATURATED, faults, saturated
from etude.recipe.model import ModelRecipe

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_attention_heads": 2,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
EXPERT = "model.layers.1.mlp.experts.2.down_proj.weight"
seeds = st.integers(0, 2**31)


def tiny(rounding: str = "none") -> Transformer:
    model = Transformer(ModelConfig.from_recipe(ModelRecipe(**SHAPE), 61)).initialise(0)
    round_with(model, None if rounding == "none" else Numerics(rounding))
    return model


def codes_of(name: str, seed: int) -> dict[str, Tensor]:
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(seed))
    quantise = quantise_nvfp4 if name == "nvfp4" else format_named(name).quantise
    whole = {"outer": outer_scale(weight.abs().max())} if name == "nvfp4" else {}
    return stored_tensors("w.weight", quantise(weight, **whole))


def named(tensors: dict[str, Tensor]) -> list[str]:
    return [fault.where for fault in faults(tensors)]


@given(
    seed=seeds,
    bad=st.sampled_from([math.nan, math.inf, -math.inf]),
    places=st.dictionaries(st.sampled_from("abcdef"), st.sets(st.integers(0, 95), min_size=1, max_size=4)),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_exactly_what_is_poisoned_is_named_and_counted(
    dtype: torch.dtype, seed: int, bad: float, places: dict[str, set[int]]
) -> None:
    made = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(8, 12, generator=made).to(dtype) for name in "abcdef"}
    tensors |= {"whole numbers": torch.arange(9), "nothing": torch.empty(0, 4, dtype=dtype)}
    assert not faults(tensors)
    for name, at in places.items():
        tensors[name].view(-1)[list(at)] = bad
    expected = [f"{name} has {len(places[name])} of 96 numbers that are not finite" for name in sorted(places)]
    assert [str(fault) for fault in faults(tensors)] == expected


@given(seed=seeds, row=st.integers(0, 7))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_as_large_as_its_type_goes_is_cut_off_whatever_its_signs(dtype: torch.dtype, seed: int, row: int) -> None:
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(seed)).to(dtype)
    x[row] = x[row].sign() * torch.finfo(dtype).max
    assert [str(fault) for fault in faults({"x": x})] == [
        f"x is saturated: in row {row}, 100% of the numbers are the largest there are"
    ]
    x[row, :6] = 1
    assert not faults({"x": x}), "half of a row may be so"


@given(seed=seeds, name=st.sampled_from(STORED))
def test_what_the_formats_write_is_sound(seed: int, name: str) -> None:
    assert not faults(codes_of(name, seed))


@given(seed=seeds, at=st.integers(0, 10**6), sign=st.sampled_from([0, 0x80]))
@pytest.mark.parametrize("name", ["mxfp8", "fp8_block", "fp8_row"])
def test_a_code_that_is_no_number(name: str, seed: int, at: int, sign: int) -> None:
    tensors = codes_of(name, seed)
    codes = tensors["w.weight"].view(torch.uint8).view(-1)
    codes[at % codes.numel()] = 0x7F | sign
    assert named(tensors) == ["w.weight"]


@given(seed=seeds, at=st.integers(0, 10**6))
@pytest.mark.parametrize("name", STORED)
def test_a_scale_that_is_infinite(name: str, seed: int, at: int) -> None:
    tensors = codes_of(name, seed)
    for scale in [key for key in tensors if key != "w.weight"]:
        poisoned = tensors | {scale: tensors[scale].clone()}
        flat = poisoned[scale].view(-1)
        at %= flat.numel()
        if flat.dtype == torch.uint8:
            flat[at] = 255
        elif flat.dtype == torch.float8_e4m3fn:
            flat.view(torch.uint8)[at] = 0x7F
        else:
            flat[at] = math.inf
        assert named(poisoned) == [scale]


def test_a_power_of_two_that_makes_infinity_of_the_largest_code() -> None:
    assert 448.0 * 2.0**119 < torch.finfo(torch.float32).max < 448.0 * 2.0**120
    scales = torch.full((2, 4), 119 + 127, dtype=torch.uint8)
    assert not faults({"w.weight_scale": scales})
    assert named({"w.weight_scale": scales + 1}) == ["w.weight_scale"]


@given(seed=seeds, row=st.integers(0, 5))
def test_a_row_whose_scale_is_too_small_is_cut_off(seed: int, row: int) -> None:
    """As under an outer scale that was measured before the row grew."""
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(seed))
    outer = outer_scale(weight.abs().max())
    weight[row] *= 1e4
    tensors = stored_tensors("w.weight", quantise_nvfp4(weight, outer=outer))
    (fault,) = faults(tensors)
    assert fault.where == "w.weight"
    assert f"in row {row}," in fault.problem


def test_saturated_counts_what_is_as_large_as_it_goes() -> None:
    packed = torch.tensor([[0x77, 0x7F], [0x07, 0x00]], dtype=torch.uint8)
    assert saturated(packed).tolist() == [1.0, 0.25]
    eight = torch.tensor([[448.0, -448.0], [447.0, 1.0]]).to(torch.float8_e4m3fn)
    assert saturated(eight).tolist() == [1.0, 0.5]
    largest = torch.finfo(torch.bfloat16).max
    assert saturated(torch.tensor([largest, -largest, 1.0, 2.0], dtype=torch.bfloat16)).tolist() == [0.5]
    assert SATURATED == 0.5


def nan_in_an_expert(model: Transformer) -> None:
    model.layers[1].mlp.experts.down_proj[2, 5, 7] = math.nan


def infinity_in_an_expert(model: Transformer) -> None:
    model.layers[1].mlp.experts.down_proj[2, 5, 7] = math.inf


def saturated_row(model: Transformer) -> None:
    model.layers[1].mlp.experts.down_proj[2, 5] = torch.finfo(torch.float32).max


POISONS = [nan_in_an_expert, infinity_in_an_expert, saturated_row]


@pytest.mark.parametrize("experts", [None, *STORED])
@pytest.mark.parametrize("poison", POISONS)
@torch.no_grad()
def test_save_hf_refuses_and_leaves_what_was_there(
    poison: Callable[[Transformer], None], experts: str | None, tmp_path: Path
) -> None:
    model = tiny()
    save_hf(model, tmp_path / "old", experts=experts)
    before = {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()}
    poison(model)
    for folder in ("old", "new"):
        with pytest.raises(PoisonedWeights, match=r"is not written: model\.layers\.1\.mlp\.experts\.2\.down_proj"):
            save_hf(model, tmp_path / folder, experts=experts)
    assert {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rounding", ["none", "nvfp4", "mxfp8", "fp8_block"])
@pytest.mark.parametrize("poison", POISONS)
@torch.no_grad()
def test_no_version_is_made_of_poisoned_weights(poison: Callable[[Transformer], None], rounding: str) -> None:
    model = tiny(rounding)
    served_state(model)
    poison(model)
    with pytest.raises(PoisonedWeights, match=r"no version is made .*: layers\.1\.mlp\.experts\.down_proj"):
        served_state(model)


@pytest.mark.parametrize("experts", [None, *STORED])
def test_somebodys_poisoned_checkpoint_is_not_loaded(experts: str | None, tmp_path: Path) -> None:
    save_hf(tiny(), tmp_path, experts=experts)
    load_hf(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    part = max(name for name in tensors if name.startswith(EXPERT))  # a scale where there is one
    whole = tensors[part].view(torch.uint8) if tensors[part].dtype == torch.float8_e4m3fn else tensors[part]
    whole.view(-1)[0] = {torch.uint8: 255}.get(whole.dtype, math.inf)
    save_file(tensors, file)
    with pytest.raises(PoisonedWeights, match=rf"{tmp_path} is not loaded: {re.escape(part)} has 1 "):
        load_hf(tmp_path)


def test_a_tensor_that_lacks_rows_is_not_loaded(tmp_path: Path) -> None:
    save_hf(tiny(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match=r"norm\.weight has shape \(63,\), config.json says \(64,\)"):
        load_hf(tmp_path)


def test_codes_and_scales_are_looked_at_as_they_are_stored(tmp_path: Path) -> None:
    save_hf(tiny(), tmp_path, experts="fp8_row")
    assert not checkpoint_faults(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{EXPERT}_scale"][3] = math.inf
    tensors[EXPERT].view(torch.uint8)[4] = 0x7E
    save_file(tensors, tmp_path / "model.safetensors")
    found = checkpoint_faults(tmp_path)
    assert {fault.where for fault in found} == {EXPERT, f"{EXPERT}_scale"}
    assert any("in row 4, 100% of the numbers" in fault.problem for fault in found)
