"""What is not finite, or cut off, is named, and nothing is written of it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.engine.tiny import tiny_model
from torch import Tensor

from etude.model import (
    Numerics,
    PoisonedWeights,
    Transformer,
    checkpoint_doubts,
    checkpoint_faults,
    load_hf,
    round_with,
    save_hf,
    served_state,
)
from etude.model.precision import (
    STORED,
    dequantise,
    format_named,
    outer_scale,
    quantise_nvfp4,
    split_quantised,
    stored_tensors,
)
from etude.model.precision.weight_checks import doubts, faults, faults_of_values

EXPERT = "model.layers.1.mlp.experts.2.down_proj.weight"
seeds = st.integers(0, 2**31)


def tiny(rounding: str = "none") -> Transformer:
    model = tiny_model(hidden_size=64, num_hidden_layers=2, moe_intermediate_size=32)
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


def suspected(tensors: dict[str, Tensor]) -> list[str]:
    return [str(doubt) for doubt in doubts(split_quantised(tensors)[1])]


@given(seed=seeds, row=st.integers(0, 5))
def test_a_row_whose_scale_is_too_small_is_suspected_and_not_refused(seed: int, row: int) -> None:
    """As under an outer scale that was measured before the row grew."""
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(seed))
    outer = outer_scale(weight.abs().max())
    weight[row] *= 1e4
    tensors = stored_tensors("w.weight", quantise_nvfp4(weight, outer=outer))
    assert suspected(tensors) == ["w.weight has 1 rows of which most codes are the largest there are"]
    assert not faults(tensors)


def of_one_magnitude(name: str) -> Tensor:
    x = torch.randn(6, 128, generator=torch.Generator().manual_seed(1))
    if name == "one row":
        x[2] = 0.02 * x[2].sign()
        return x
    if name == "binarised":
        return x.sign() * x.abs().mean(-1, keepdim=True)
    return torch.where(x.abs() > 0.3, 0.02 * x.sign(), 0.0)


@pytest.mark.parametrize("weights", ["one row", "binarised", "ternary"])
@pytest.mark.parametrize("name", STORED)
def test_rows_of_one_magnitude_are_sound(name: str, weights: str) -> None:
    weight = of_one_magnitude(weights)
    quantise = quantise_nvfp4 if name == "nvfp4" else format_named(name).quantise
    whole = {"outer": outer_scale(weight.abs().max())} if name == "nvfp4" else {}
    tensors = stored_tensors("w.weight", quantise(weight, **whole))
    quantised = split_quantised(tensors)[1]
    assert not faults(tensors)
    assert not faults_of_values((name, dequantise(q, torch.bfloat16)) for name, q in quantised.items())


def test_full_codes_of_nvfp4_are_suspected_where_their_scales_are_full_too() -> None:
    """Blocks that are less loud than the tensor's loudest were not cut off, whatever their codes."""
    weight = of_one_magnitude("one row")
    q = quantise_nvfp4(weight, outer=outer_scale(weight.abs().max()))
    row = torch.stack([q.codes[2] & 7, q.codes[2] >> 4 & 7])
    assert torch.equal(row, torch.full_like(row, 7))
    assert not suspected(stored_tensors("w.weight", q))


def test_formats_as_they_write_ordinary_weights_raise_no_doubt() -> None:
    assert not any(suspected(codes_of(name, seed)) for name in STORED for seed in range(3))


@pytest.mark.parametrize("load", ["load_hf", "checkpoint_faults"])
@pytest.mark.parametrize("experts", ["fp8_block", "fp8_row", "nvfp4"])
def test_scales_that_are_finite_until_they_are_used_are_refused(experts: str, load: str, tmp_path: Path) -> None:
    save_hf(tiny(), tmp_path, experts=experts)
    scale = f"{EXPERT}{ {'fp8_block': '_scale_inv', 'fp8_row': '_scale', 'nvfp4': '_scale_2'}[experts] }"
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[scale] = torch.full_like(tensors[scale], 1e38)
    assert not faults(tensors), "each is finite where it stands"
    save_file(tensors, tmp_path / "model.safetensors")
    said = rf"{re.escape(EXPERT)} stands for \d+ of 2048 numbers that are not finite in float32"
    if load == "load_hf":
        with pytest.raises(PoisonedWeights, match=rf"is not loaded: {said}"):
            load_hf(tmp_path)
    else:
        (fault,) = checkpoint_faults(tmp_path)
        assert re.fullmatch(said, str(fault))


def test_what_only_a_narrower_type_cannot_hold_is_refused_there(tmp_path: Path) -> None:
    save_hf(tiny(), tmp_path, experts="fp8_row")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{EXPERT}_scale"].fill_(1e4)
    save_file(tensors, tmp_path / "model.safetensors")
    load_hf(tmp_path, torch.bfloat16)
    with pytest.raises(PoisonedWeights, match="not finite in float16"):
        load_hf(tmp_path, torch.float16)


@pytest.mark.parametrize("divisor", [0.0, 1e-40, math.inf, math.nan])
def test_a_divisor_of_nothing_is_refused(divisor: float, tmp_path: Path) -> None:
    """NVFP4 as compressed-tensors writes it."""
    save_hf(tiny(), tmp_path, experts="nvfp4")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{EXPERT}_packed"] = tensors.pop(EXPERT)
    outer = tensors.pop(f"{EXPERT}_scale_2")
    tensors[f"{EXPERT}_global_scale"] = outer.reciprocal().view(1)
    save_file(tensors, tmp_path / "model.safetensors")
    assert not checkpoint_faults(tmp_path)
    tensors[f"{EXPERT}_global_scale"] = torch.tensor([divisor])
    save_file(tensors, tmp_path / "model.safetensors")
    (fault,) = checkpoint_faults(tmp_path)
    assert fault.where == f"{EXPERT}_global_scale"
    with pytest.raises(PoisonedWeights, match=r"is not loaded: .*_global_scale has 1 of 1 "):
        load_hf(tmp_path)


def test_a_scale_of_activations_is_nobodys_divisor() -> None:
    assert not faults({f"{EXPERT.removesuffix('weight')}input_global_scale": torch.zeros(1)})


def poison(model: Transformer, kind: str) -> None:
    row = model.layers[1].mlp.experts.down_proj[2, 5]
    if kind == "saturated row":
        row.fill_(torch.finfo(torch.float32).max)
    else:
        row[7] = float(kind)


every_poison = pytest.mark.parametrize("kind", ["nan", "inf", "saturated row"])


@pytest.mark.parametrize("experts", [None, *STORED])
@every_poison
@torch.no_grad()
def test_save_hf_refuses_and_leaves_what_was_there(kind: str, experts: str | None, tmp_path: Path) -> None:
    model = tiny()
    save_hf(model, tmp_path / "old", experts=experts)
    before = {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()}
    poison(model, kind)
    for folder in ("old", "new"):
        with pytest.raises(PoisonedWeights, match=r"is not written: model\.layers\.1\.mlp\.experts\.2\.down_proj"):
            save_hf(model, tmp_path / folder, experts=experts)
    assert {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rounding", ["none", "nvfp4", "mxfp8", "fp8_block"])
@every_poison
@torch.no_grad()
def test_no_version_is_made_of_poisoned_weights(kind: str, rounding: str) -> None:
    model = tiny(rounding)
    served_state(model)
    poison(model, kind)
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


def test_codes_and_scales_are_looked_at_as_they_are_stored(tmp_path: Path) -> None:
    save_hf(tiny(), tmp_path, experts="fp8_row")
    assert not checkpoint_faults(tmp_path)
    assert not checkpoint_doubts(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[EXPERT].view(torch.uint8)[4] = 0x7E
    save_file(tensors, tmp_path / "model.safetensors")
    assert not checkpoint_faults(tmp_path)
    assert [doubt.where for doubt in checkpoint_doubts(tmp_path)] == [EXPERT]
    tensors[f"{EXPERT}_scale"][3] = math.inf
    tensors[EXPERT].view(torch.uint8)[5, 0] = 0x7F
    save_file(tensors, tmp_path / "model.safetensors")
    assert {fault.where for fault in checkpoint_faults(tmp_path)} == {EXPERT, f"{EXPERT}_scale"}


@torch.no_grad()
def test_what_rounds_up_to_infinity_is_not_written(tmp_path: Path) -> None:
    model = tiny()
    model.layers[1].mlp.experts.down_proj[2, 5, 7] = torch.finfo(torch.float32).max * 0.999
    save_hf(model, tmp_path / "plain")
    with pytest.raises(PoisonedWeights, match=r"is not written: .* stands for 1 of 2048 numbers"):
        save_hf(model, tmp_path / "rounded", experts="mxfp8")
