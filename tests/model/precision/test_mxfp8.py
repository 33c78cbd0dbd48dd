from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import given, settings
from tests.model.precision.oracles import ADVERSARIAL, every_bf16, exact_codes, random_rows, tensors, to_mxfp8
from torch import Tensor

from etude.model.precision import dequantise, quantise_mxfp8
from etude.model.precision.elements import E4M3

FLOOR = 448 * 2.0**-127
"""Up to here a block has the least scale; torchao then divides by 1 instead, so that all of its codes are zero."""


def codes_and_scales(x: Tensor) -> tuple[Tensor, Tensor]:
    q = quantise_mxfp8(x)
    return q.codes.view(torch.uint8), q.scales


def test_every_bf16_as_the_largest_of_its_block_is_torchao_s() -> None:
    largest = every_bf16()
    block = torch.randn(len(largest), 32, generator=torch.Generator().manual_seed(0)).clamp(-1, 1).bfloat16()
    x = (block * largest[:, None].abs()).where(block.abs() < 1, largest[:, None])
    x[:, 5] = largest
    absmax = x.abs().amax(-1)
    (codes, scales), (scales_there, codes_there) = codes_and_scales(x), to_mxfp8(x)
    assert torch.equal(scales, scales_there)
    comparable = (absmax > FLOOR) & ~absmax.isnan()
    assert int(comparable.sum()) > 63_000
    assert torch.equal(codes[comparable], codes_there[comparable])


def test_fp32_is_torchao_s_but_for_its_logarithm() -> None:
    """torchao rounds log2 to fp32 before it rounds up, so a quotient just above a power of two gets that power, which
    is less than what is needed; the largest number then saturates."""
    x = torch.cat([random_rows(seed, 400, 64, reach=20) for seed in range(5)]).reshape(-1, 32)
    x = torch.cat([x, ADVERSARIAL[: len(ADVERSARIAL) // 32 * 32].view(-1, 32).roll(1, 0)])
    absmax = x.abs().amax(-1)
    x = x[(absmax > FLOOR) & absmax.isfinite()]
    (codes, scales), (scales_there, codes_there) = codes_and_scales(x), to_mxfp8(x)
    same = (scales == scales_there).squeeze(-1)
    assert float(same.float().mean()) > 0.99
    assert torch.equal(codes[same], codes_there[same])
    for largest, ours, theirs in zip(x.abs().amax(-1)[~same], scales[~same], scales_there[~same], strict=True):
        needed = Fraction(float(largest)) / 448 / Fraction(2) ** (int(theirs) - 127)
        assert int(ours) == int(theirs) + 1
        assert 1 < needed < 1 + Fraction(1, 2**16)


@given(tensors(rows=2, finite=True))
@settings(max_examples=25)
def test_any_block_is_that_of_fractions(x: Tensor) -> None:
    codes, scales = codes_and_scales(x)
    for block, code, scale in zip(x.view(-1, 32), codes.view(-1, 32), scales.view(-1), strict=True):
        exact = [Fraction(value) / Fraction(2) ** (int(scale) - 127) for value in block.abs().tolist()]
        assert max(exact) <= 448
        assert int(scale) == 0 or max(exact) > 224
        assert (code & 0x7F).tolist() == exact_codes(exact, E4M3)
        assert torch.equal(code >= 128, block.signbit())


def test_nan_takes_its_block() -> None:
    x = torch.ones(2, 64)
    x[0, 40] = torch.nan
    codes, scales = codes_and_scales(x)
    assert scales.tolist() == [[119, 255], [119, 119]]
    assert bool((codes[0, 32:] == 0x7F).all())
    back = dequantise(quantise_mxfp8(x), torch.float32)
    assert bool(back[0, 32:].isnan().all())
    assert torch.equal(back[0, :32], x[0, :32])
    assert torch.equal(back[1], x[1])


def test_infinity_comes_back_as_one() -> None:
    x = torch.zeros(32)
    x[:4] = torch.tensor([torch.inf, -torch.inf, 2.0**126, 1.0])
    q = quantise_mxfp8(x)
    assert q.scales.tolist() == [254]
    assert q.codes.view(torch.uint8)[:4].tolist() == [0x7E, 0xFE, 0x30, 0]
    assert dequantise(q, torch.float32)[:4].tolist() == [torch.inf, -torch.inf, 2.0**126, 0]
