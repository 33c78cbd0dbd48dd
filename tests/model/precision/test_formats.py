"""What holds for every format."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.model.precision.oracles import bits_of, random_rows, tensors
from torch import Tensor

from etude.model import CannotQuantise
from etude.model.precision import FORMATS, BlockFP8, Quantised, dequantise, format_named, quantise_mxfp8, quantise_nvfp4

NAMES = sorted(FORMATS)


def parts(q: Quantised) -> list[Tensor]:
    found = [getattr(q, name) for name in ("codes", "scales", "outer") if hasattr(q, name)]
    return [bits_of(part) for part in found]


def same(a: Quantised, b: Quantised) -> bool:
    return type(a) is type(b) and all(torch.equal(x, y) for x, y in zip(parts(a), parts(b), strict=True))


def equal_or_nan(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("name", NAMES)
@given(x=tensors())
@settings(max_examples=20)
def test_fake_is_there_and_back(name: str, x: Tensor) -> None:
    format = FORMATS[name]
    assert equal_or_nan(format.fake(x), dequantise(format.quantise(x), x.dtype))


def test_mxfp8_has_two_ways_to_write_a_block_and_stays_with_the_second() -> None:
    """A largest number that was rounded down to 224 is 448 at half the scale, which is what it becomes."""
    x = random_rows(0, 256, 256, reach=3)
    q = quantise_mxfp8(x)
    again = quantise_mxfp8(dequantise(q, torch.float32))
    assert 0 < int((q.scales != again.scales).sum()) < q.scales.numel() / 8
    assert bool((q.scales - again.scales <= 1).all())
    assert torch.equal(dequantise(again, torch.float32), dequantise(q, torch.float32))
    assert same(quantise_mxfp8(dequantise(again, torch.float32)), again)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mxfp8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_quantising_again_gives_the_same_codes_and_scales(name: str, dtype: torch.dtype) -> None:
    """In fp32 a scale that is no power of two may move by its last bit, as dividing by 448 rounds; not in bf16, where
    the largest number comes back as it was. The codes and the scales of NVFP4's blocks never move."""
    for seed in range(3):
        q = FORMATS[name].quantise(random_rows(seed, 256, 256, dtype, reach=3))
        again = FORMATS[name].quantise(dequantise(q, dtype))
        if dtype == torch.bfloat16:
            assert same(again, q)
        else:
            first, *scales = zip(parts(again), parts(q), strict=True)
            assert torch.equal(*first)
            for new, old in scales:
                assert int((new - old).abs().max()) <= (1 if old.dtype == torch.int32 else 0)


@pytest.mark.parametrize("name", NAMES)
def test_any_view_of_any_number_type(name: str) -> None:
    x = random_rows(13, 256, 128, reach=1)
    assert torch.equal(FORMATS[name].fake(x.mT), FORMATS[name].fake(x.mT.contiguous()))
    half = x.half()
    assert torch.equal(FORMATS[name].fake(half), FORMATS[name].fake(half.float()).half())
    stacked = x.view(2, 128, 128)
    assert FORMATS[name].fake(stacked).shape == stacked.shape
    leaf = x.clone().requires_grad_()
    assert not FORMATS[name].fake(leaf).requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_experts_without_tokens(name: str) -> None:
    for shape in ((0, 256), (3, 0, 256)):
        q = FORMATS[name].quantise(torch.empty(shape))
        assert dequantise(q).shape == FORMATS[name].fake(torch.empty(shape)).shape == shape


def test_a_ragged_axis_is_refused_where_blocks_have_one_size() -> None:
    with pytest.raises(CannotQuantise, match=r"MXFP8 has blocks of 32 .* 40 is no multiple of that; .* zeros to 64"):
        quantise_mxfp8(torch.ones(2, 40))
    with pytest.raises(CannotQuantise, match=r"NVFP4 has blocks of 16 .* zeros to 48"):
        quantise_nvfp4(torch.ones(2, 40))
    assert isinstance(FORMATS["fp8_block"].quantise(torch.ones(2, 40)), BlockFP8)


@pytest.mark.parametrize("name", NAMES)
def test_what_no_format_takes_is_told(name: str) -> None:
    with pytest.raises(CannotQuantise, match="is float64"):
        FORMATS[name].quantise(torch.ones(2, 128, dtype=torch.float64))
    with pytest.raises(CannotQuantise, match=r"\(2, 0\)"):
        FORMATS[name].quantise(torch.ones(2, 0))


def test_an_unknown_format_is_told() -> None:
    with pytest.raises(CannotQuantise, match="no format 'fp6'; the formats are mxfp8"):
        format_named("fp6")
