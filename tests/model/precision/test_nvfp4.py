from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.precision.oracles import (
    e2m1_there,
    nvfp4_quantize,
    per_tensor_amax_to_scale,
    random_rows,
    tensors,
)
from torch import Tensor

from etude.model.precision import NVFP4, dequantise, fake_nvfp4, outer_scale, quantise_nvfp4


def unpacked(q: NVFP4) -> Tensor:
    return torch.stack([q.codes & 15, q.codes >> 4], -1).flatten(-2)


def by_reciprocal(x: np.ndarray, divisor: np.ndarray, bits: int | None) -> np.ndarray:
    """x / divisor; with `bits` x times a reciprocal of that many significant bits, rounded by way of fp64."""
    if bits is None:
        return x / divisor
    fraction, exponent = np.frexp((np.float32(1) / divisor).astype(np.float64))
    # Half away from zero, as adding half of the last bit to a pattern rounds.
    return x * np.ldexp(np.floor(fraction * 2.0**bits + 0.5) / 2.0**bits, exponent).astype(np.float32)


def by_numpy(x: Tensor, outer: Tensor, bits: int | None = None) -> tuple[Tensor, Tensor]:
    """Scales and codes with numpy's arithmetic, which is IEEE's, and ml_dtypes' numbers."""
    blocks = x.float().numpy().reshape(*x.shape[:-1], -1, 16)
    with np.errstate(all="ignore"):
        wanted = by_reciprocal(np.abs(blocks).max(-1) / np.float32(6), outer.numpy(), bits)
        scales = np.clip(wanted, 2.0**-6, 448).astype(ml_dtypes.float8_e4m3fn)
        quotients = by_reciprocal(blocks, (scales.astype(np.float32) * outer.numpy())[..., None], bits)
    return torch.from_numpy(scales.view(np.uint8)), e2m1_there(torch.from_numpy(quotients.reshape(x.shape)))


@given(tensors(finite=True), st.sampled_from(["token", "tensor"]))
@settings(max_examples=25)
def test_any_number_is_numpy_s_and_ml_dtypes(x: Tensor, per: str) -> None:
    q = quantise_nvfp4(x, per=per)
    scales, codes = by_numpy(x, q.outer)
    assert torch.equal(q.scales.view(torch.uint8), scales)
    assert torch.equal(unpacked(q), codes)


def test_with_exact_reciprocals_it_is_torchao_s_bit_for_bit() -> None:
    """torchao multiplies by the reciprocal of the outer scale divided by the block's. Where the outer scale is a power
    of two that is one rounding, that of a reciprocal of all 24 bits."""
    for seed in range(4):
        x = random_rows(seed, 64, 256, torch.bfloat16 if seed % 2 else torch.float32)
        outer = torch.tensor(2.0 ** float((x.float().abs().max() / 2688).log2().ceil()))
        scales, codes = nvfp4_quantize(x, per_tensor_scale=outer)
        q = quantise_nvfp4(x, outer=outer, reciprocal_bits=24)
        assert torch.equal(q.scales.view(torch.uint8), scales.view(torch.uint8).view(q.scales.shape))
        assert torch.equal(q.codes, codes)


def test_with_ieee_division_it_differs_from_torchao_s_only_beside_a_tie() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.float64)
    x = random_rows(7, 256, 512)
    q = quantise_nvfp4(x, per="tensor")
    assert torch.equal(q.outer, per_tensor_amax_to_scale(x.abs().max()))
    scales, codes = nvfp4_quantize(x, per_tensor_scale=q.outer)
    assert torch.equal(q.scales.view(torch.uint8), scales.view(torch.uint8).view(q.scales.shape))
    theirs = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    other = unpacked(q) != theirs
    divisors = (q.scales.double() * q.outer.double()).repeat_interleave(16, -1)
    quotients = (x.double() / divisors)[other].abs()
    assert bool(((quotients[:, None] / ties - 1).abs().amin(-1) < 2.0**-21).all())


def test_a_given_outer_scale_broadcasts_and_saturates() -> None:
    x = torch.ones(3, 2, 32)
    x[0, 0, 0] = 1e6
    x[0, 1, 0] = torch.inf
    q = quantise_nvfp4(x, outer=torch.tensor([1.0, 0.5, 2.0]).view(3, 1, 1))
    back = dequantise(q, torch.float32)
    assert float(back[0, 0, 0]) == float(back[0, 1, 0]) == 6 * 448
    assert q.outer.shape == (3, 1, 1)
    # A block of ones wants the scale 1/6, of which E4M3 has 0.171875: six of it are the nearest that there is.
    assert torch.equal(back[1], torch.full((2, 32), 6 * 0.3437500 * 0.5))


def test_zeros_have_the_least_scales_and_keep_their_sign() -> None:
    q = quantise_nvfp4(torch.tensor([[0.0, -0.0] * 8]))
    assert q.outer.tolist() == [[2.0**-120]]
    assert q.scales.float().tolist() == [[2.0**-6]]
    assert q.codes.tolist() == [[0x80] * 8]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_takes_the_reach_of_the_outer_scale(bad: float) -> None:
    x = torch.ones(3, 32)
    x[1, 3] = bad
    q = quantise_nvfp4(x)
    assert q.outer.isnan().flatten().tolist() == [False, True, False]
    assert q.codes[1].tolist() == [0] * 16
    assert q.scales.view(torch.uint8)[1].tolist() == [0x7F] * 2
    assert dequantise(q).isnan().all(-1).tolist() == [False, True, False]
    assert bool(dequantise(quantise_nvfp4(x, per="tensor")).isnan().all())


def test_nan_under_a_given_scale_takes_its_block() -> None:
    x = torch.ones(1, 32)
    x[0, 20] = torch.nan
    back = dequantise(quantise_nvfp4(x, outer=torch.ones(())))
    assert back.isnan().tolist() == [[False] * 16 + [True] * 16]


def test_with_approximate_reciprocals_fake_is_there_and_back_too() -> None:
    x = random_rows(11, 512, 256, torch.bfloat16, reach=1)
    for bits in (6, 14, 24):
        back = dequantise(quantise_nvfp4(x, reciprocal_bits=bits), x.dtype)
        assert torch.equal(fake_nvfp4(x, reciprocal_bits=bits), back)


@given(tensors(finite=True), st.integers(1, 24))
@settings(max_examples=25)
def test_reciprocals_take_the_place_of_both_divisions_by_a_scale(x: Tensor, bits: int) -> None:
    q = quantise_nvfp4(x, reciprocal_bits=bits)
    scales, codes = by_numpy(x, q.outer, bits)
    assert torch.equal(q.scales.view(torch.uint8), scales)
    assert torch.equal(unpacked(q), codes)


def test_the_outer_scale_takes_the_largest_number_to_the_largest_scale() -> None:
    x = random_rows(5, 32, 64)
    largest = quantise_nvfp4(x).scales.float().amax(-1)
    assert bool((largest == 448).all())
    assert float(outer_scale(torch.tensor(2688.0))) == 1.0
