"""The quantisers in Triton, interpreted, give the references' bits."""

from __future__ import annotations

import pytest
import torch
from tests.model.precision.kernels.equal import assert_same
from tests.model.precision.oracles import ADVERSARIAL, every_bf16, random_rows
from torch import Tensor

from etude.model import CannotQuantise
from etude.model.precision import FORMATS
from etude.model.precision.kernels import reference

pytest.importorskip("triton")
from etude.model.precision.kernels import in_triton

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""Of numpy, which the interpreter computes with: NaN and infinities are meant."""
NAMES = sorted(FORMATS)
TILED = ("mxfp8", "fp8_block", "fp8_tile")
DTYPES = (torch.bfloat16, torch.float32)


def special(dtype: torch.dtype) -> Tensor:
    """32 x 256: all adversarial numbers; rows of zeros, of both signs; NaN and infinities, alone and together."""
    x = random_rows(0, 32, 256)
    x.view(-1)[: len(ADVERSARIAL)] = ADVERSARIAL
    x[20:24] = 0
    x[22] *= -1
    x[25, 3], x[26, 40], x[27, 200], x[28, :2] = torch.nan, torch.inf, -torch.inf, torch.tensor([torch.inf, torch.nan])
    x[29] = 2.0**-149
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_adversarial_numbers(name: str, dtype: torch.dtype) -> None:
    x = special(dtype)
    assert_same(in_triton.quantise(x, name), reference.quantise(x, name))


@pytest.mark.parametrize("name", NAMES)
def test_every_bf16(name: str) -> None:
    """Beside the largest number of its block, which makes scales of every kind, and alone in a block."""
    for x in (every_bf16().view(16, 4096), every_bf16().view(16, 4096).mT.reshape(16, 4096)):
        assert_same(in_triton.quantise(x, name), reference.quantise(x, name))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TILED)
def test_rows_and_columns_of_one_reading(name: str, dtype: torch.dtype) -> None:
    for x in (special(dtype), random_rows(1, 3 * 64, 288, dtype).view(3, 64, 288)):
        for found, wanted in zip(in_triton.quantise_both(x, name), reference.quantise_both(x, name), strict=True):
            assert_same(found, wanted)


@pytest.mark.parametrize("shape", [(130, 200), (1, 1), (2, 129, 40)])
@pytest.mark.parametrize("name", ["fp8_block", "fp8_tile"])
def test_edges_of_blocks(name: str, shape: tuple[int, ...]) -> None:
    x = random_rows(2, 512, 512).flatten()[: torch.Size(shape).numel()].view(shape)
    for found, wanted in zip(in_triton.quantise_both(x, name), reference.quantise_both(x, name), strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_no_tokens_and_any_view(name: str) -> None:
    x = random_rows(3, 128, 32)
    assert_same(in_triton.quantise(x.mT, name), reference.quantise(x.mT, name))
    assert_same(in_triton.quantise(x[:0], name), reference.quantise(x[:0], name))


@pytest.mark.parametrize("outer", [torch.tensor(0.25), torch.tensor([[1e-3], [torch.nan], [1e-3], [100.0]])])
def test_an_outer_scale_that_was_given(outer: Tensor) -> None:
    x = random_rows(4, 4, 64)
    x[2, 5], x[3, 7] = torch.inf, torch.nan
    assert_same(in_triton.quantise(x, "nvfp4", outer=outer), reference.quantise(x, "nvfp4", outer=outer))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "nvfp4_tensor"])
def test_swiglu_before(name: str) -> None:
    """Triton's exponential may end on another last fp32 bit than torch's, so that rarely a bf16 is the neighbour."""
    gate, up = random_rows(5, 16, 512, torch.bfloat16, reach=2), random_rows(6, 16, 512, torch.bfloat16, reach=2)
    gate[:, ::7] = torch.tensor([0.0, -0.0, 3e38, -3e38, -90.0, -104.0, 1e-40, 20.0]).bfloat16().repeat(2)[:, None]
    found, wanted = in_triton.swiglu_quantise(gate, up, name), reference.swiglu_quantise(gate, up, name)
    assert found.scales.shape == wanted.scales.shape
    unequal = (found.codes.view(torch.uint8) != wanted.codes.view(torch.uint8)).float().mean()
    assert float(unequal) < 1e-3
    assert float((found.scales.view(torch.uint8) != wanted.scales.view(torch.uint8)).float().mean()) < 1e-2


@pytest.mark.parametrize("name", TILED)
def test_swiglu_of_what_is_exact(name: str) -> None:
    """No exponential: zeros, and gates for which silu is the identity or nothing."""
    gate = torch.tensor([0.0, 64.0, 100.0, -200.0, torch.nan, torch.inf, -torch.inf, -0.0]).bfloat16()
    gate, up = gate.repeat(64, 32), random_rows(7, 64, 256, torch.bfloat16)
    gate[:, 128:] = 96.0
    found = in_triton.swiglu_quantise_both(gate, up, name)
    for a, b in zip(found, reference.swiglu_quantise_both(gate, up, name), strict=True):
        assert_same(a, b)


def test_what_no_kernel_takes_is_told() -> None:
    with pytest.raises(CannotQuantise, match="bfloat16 and float32, not float16"):
        in_triton.quantise(torch.ones(2, 64, dtype=torch.float16), "mxfp8")
    with pytest.raises(CannotQuantise, match=r"MXFP8 of the transpose has blocks of 32 .* 40 is no multiple of"):
        in_triton.quantise_both(torch.ones(40, 64), "mxfp8")
    with pytest.raises(CannotQuantise, match="scales of whole rows"):
        in_triton.quantise_both(torch.ones(64, 64), "nvfp4")
    with pytest.raises(CannotQuantise, match=r"two bf16 tensors of one shape, not bfloat16 \(2, 32\) and float32"):
        in_triton.swiglu_quantise(torch.ones(2, 32).bfloat16(), torch.ones(2, 32), "mxfp8")
    with pytest.raises(CannotQuantise, match="apply SwiGLU before it"):
        in_triton.swiglu_quantise(torch.ones(2, 32).bfloat16(), torch.ones(2, 32).bfloat16(), "nvfp4_tensor")
    for room in (in_triton, reference):
        with pytest.raises(CannotQuantise, match="mxfp8 has no outer scale"):
            room.quantise(torch.ones(2, 64), "mxfp8", outer=torch.ones(()))
    with pytest.raises(CannotQuantise, match="up to 16384 numbers, not 16400"):
        in_triton.quantise(torch.ones(1, 16400), "nvfp4")
    with pytest.raises(CannotQuantise, match="there is no format 'fp6'"):
        in_triton.quantise(torch.ones(1, 64), "fp6")
