from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.model.precision.oracles import (
    choose_scale_float8,
    e4m3_there,
    quantize_affine_float8,
    random_rows,
    tensors,
)
from torch import Tensor

from etude.model import CannotQuantise
from etude.model.precision import dequantise, quantise_block_fp8, quantise_row_fp8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [128, 1])
def test_blocks_are_torchao_s(dtype: torch.dtype, rows: int) -> None:
    x = random_rows(rows, 256, 384, dtype)
    q = quantise_block_fp8(x, rows=rows)
    scales = choose_scale_float8(x.float(), [rows, 128])
    assert torch.equal(q.scales, scales)
    assert torch.equal(q.codes.view(torch.uint8), quantize_affine_float8(x, scales).view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_torchao_s(dtype: torch.dtype) -> None:
    x = random_rows(0, 64, 208, dtype)
    q = quantise_row_fp8(x)
    scales = choose_scale_float8(x.float(), [1, 208])
    assert torch.equal(q.scales, scales)
    assert torch.equal(q.codes.view(torch.uint8), quantize_affine_float8(x, scales).view(torch.uint8))


@given(tensors(finite=True))
@settings(max_examples=15)
def test_any_row_is_divided_and_rounded_as_ml_dtypes_does(x: Tensor) -> None:
    q = quantise_row_fp8(x)
    expected = (x.float().abs().amax(-1, keepdim=True) / 448).clamp_min(2.0**-126)
    assert torch.equal(q.scales, expected)
    assert torch.equal(q.codes.view(torch.uint8), e4m3_there(torch.from_numpy(x.float().numpy() / q.scales.numpy())))


@pytest.mark.parametrize(("height", "width"), [(130, 200), (1, 1), (128, 129), (300, 128)])
def test_an_edge_is_as_if_filled_up_with_zeros(height: int, width: int) -> None:
    x = random_rows(2, 512, 512)[:height, :width]
    padded = torch.zeros(-(-height // 128) * 128, -(-width // 128) * 128)
    padded[:height, :width] = x
    q, whole = quantise_block_fp8(x), quantise_block_fp8(padded)
    assert torch.equal(q.scales, whole.scales)
    assert torch.equal(q.codes.view(torch.uint8), whole.codes.view(torch.uint8)[:height, :width])
    assert torch.equal(dequantise(q), dequantise(whole)[:height, :width])


def test_blocks_end_with_their_matrix() -> None:
    x = random_rows(4, 3 * 100, 256).view(3, 100, 256)
    q = quantise_block_fp8(x)
    assert q.scales.shape == (3, 1, 2)
    for matrix, codes, scales in zip(x, q.codes, q.scales, strict=True):
        alone = quantise_block_fp8(matrix)
        assert torch.equal(alone.scales, scales)
        assert torch.equal(alone.codes.view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_takes_the_reach_of_its_scale(bad: float) -> None:
    x = torch.ones(130, 256)
    x[129, 5] = bad
    q = quantise_block_fp8(x)
    assert q.scales.isnan().tolist() == [[False, False], [True, False]]
    assert bool((q.codes.view(torch.uint8)[128:, :128] == 0x7F).all())
    nan = dequantise(q).isnan()
    assert bool(nan[128:, :128].all())
    assert int(nan.sum()) == 2 * 128
    assert dequantise(quantise_row_fp8(x)).isnan().all(-1).nonzero().flatten().tolist() == [129]


def test_zeros_have_the_least_scale() -> None:
    q = quantise_block_fp8(torch.zeros(2, 3))
    assert q.scales.tolist() == [[2.0**-126]]
    assert bool((dequantise(q) == 0).all())


def test_a_vector_has_no_blocks() -> None:
    with pytest.raises(CannotQuantise, match="needs a matrix"):
        quantise_block_fp8(torch.ones(128))
