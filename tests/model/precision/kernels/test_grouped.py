"""Grouped matmuls in Triton, interpreted, against the reference. Small integers make every sum exact, in any order."""

from __future__ import annotations

import pytest
import torch
from tests.model.precision.kernels.loads import LOADS, ends_of
from tests.model.precision.oracles import random_rows
from torch import Tensor

from etude.model import CannotQuantise
from etude.model.precision import FORMATS, Quantised
from etude.model.precision.kernels import reference

pytest.importorskip("triton")
from etude.model.precision.kernels import in_triton

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""Of numpy, which the interpreter computes with: NaN and infinities are meant."""
KINDS = {
    "bf16": None,
    "fp8_row": ("fp8_row", "fp8_row"),
    "fp8_block": ("fp8_tile", "fp8_block"),
    "mxfp8": ("mxfp8",) * 2,
}
Operands = tuple[Tensor | Quantised, Tensor | Quantised]


def integers(seed: int, *shape: int) -> Tensor:
    """Of which each stretch of 128 along the last axis, if it is so long, has a 7: scales are powers of two."""
    x = torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(seed)).float()
    x[..., ::128] = 7
    return x


def operands(kind: str, a: Tensor, b: Tensor) -> Operands:
    if KINDS[kind] is None:
        return a.bfloat16(), b.bfloat16()
    left, right = KINDS[kind]
    return FORMATS[left].quantise(a), FORMATS[right].quantise(b)


def compare(kind: str, load: list[int], n: int, k: int, seed: int = 0) -> None:
    ends = ends_of(load)
    rows = int(ends[-1])
    a, b = operands(kind, integers(seed, rows, k), integers(seed + 1, len(load), n, k))
    assert torch.equal(in_triton.grouped_mm(a, b, ends), reference.grouped_mm(a, b, ends))


@pytest.mark.parametrize("load", LOADS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_loads(kind: str, load: list[int]) -> None:
    compare(kind, load, n=32, k=128)


@pytest.mark.parametrize(
    ("kind", "n", "k"), [("bf16", 24, 40), ("fp8_row", 40, 48), ("fp8_block", 24, 144), ("mxfp8", 8, 96)]
)
def test_tails_of_columns_and_of_depth(kind: str, n: int, k: int) -> None:
    compare(kind, [3, 0, 18], n, k)


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_weights_that_are_a_transpose_give_dgrad(load: list[int]) -> None:
    ends = ends_of(load)
    grads, weights = integers(2, int(ends[-1]), 64).bfloat16(), integers(3, len(load), 64, 40).bfloat16()
    found = in_triton.grouped_mm(grads, weights.mT, ends)
    assert torch.equal(found, reference.grouped_mm(grads, weights.mT.contiguous(), ends))


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_wgrad(load: list[int]) -> None:
    ends = ends_of(load)
    grads, x = integers(4, int(ends[-1]), 24).bfloat16(), integers(5, int(ends[-1]), 40).bfloat16()
    assert torch.equal(in_triton.grouped_wgrad(grads.mT, x.mT, ends), reference.grouped_wgrad(grads.mT, x.mT, ends))


WGRADS = {"fp8_tile": 128, "mxfp8": 32}
"""With the rows of which a block is made."""


def columns(kind: str, load: list[int], width: int, seed: int) -> tuple[Quantised, Tensor]:
    """What a placement in whole blocks leaves, and where experts end: rows of nobody are zero, and those beyond the
    last end may be anything."""
    block = WGRADS[kind]
    ends = ends_of([-(-count // block) * block for count in load])
    rows = torch.zeros(int(ends[-1]) + block, width)
    rows[int(ends[-1]) :] = 5
    for end, size, count in zip(ends.tolist(), ends.diff(prepend=ends.new_zeros(1)).tolist(), load, strict=True):
        rows[end - size : end - size + count] = integers(seed, width, count).T
    return FORMATS[kind].quantise(rows.T.contiguous()), ends


@pytest.mark.parametrize("load", [*LOADS, [130, 0, 257]], ids=str)
@pytest.mark.parametrize("kind", WGRADS)
def test_wgrad_of_columns_quantised_along_tokens(kind: str, load: list[int]) -> None:
    (a, ends), (b, _) = columns(kind, load, 24, 4), columns(kind, load, 40, 5)
    assert torch.equal(in_triton.grouped_wgrad(a, b, ends), reference.grouped_wgrad(a, b, ends))


@pytest.mark.parametrize("kind", WGRADS)
def test_nan_in_an_expert_s_columns_is_its_own(kind: str) -> None:
    """With codes and scales of NaN in the blocks that follow an expert's last."""
    block = WGRADS[kind]
    ends = ends_of([block, 0, block, 3 * block])
    a, b = integers(6, 16, int(ends[-1])), integers(7, 24, int(ends[-1]))
    a[3, block + 2], b[5, block + 1] = torch.nan, torch.inf
    columns = FORMATS[kind].quantise(a), FORMATS[kind].quantise(b)
    found, wanted = in_triton.grouped_wgrad(*columns, ends), reference.grouped_wgrad(*columns, ends)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert found.isfinite().all(-1).all(-1).tolist() == [True, True, False, True]


@pytest.mark.parametrize("kind", WGRADS)
def test_columns_of_any_size(kind: str) -> None:
    a, b = (FORMATS[kind].quantise(random_rows(seed, 24, 384, reach=1)) for seed in (9, 10))
    ends = ends_of([128, 0, 256])
    found, wanted = in_triton.grouped_wgrad(a, b, ends).float(), reference.grouped_wgrad(a, b, ends).float()
    assert float((found - wanted).norm() / wanted.norm()) < 2e-3
    assert float((found == wanted).float().mean()) > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_an_expert_s_nan_is_its_own(kind: str) -> None:
    """Tiles reach beyond an expert's rows and columns; what lies there must not be seen."""
    ends = ends_of([5, 3, 9])
    a, b = integers(6, 17, 128), integers(7, 3, 24, 128)
    a[6, 3], b[1, 2, 5] = torch.nan, torch.inf
    a_codes, b_codes = operands(kind, a, b)
    found, wanted = in_triton.grouped_mm(a_codes, b_codes, ends), reference.grouped_mm(a_codes, b_codes, ends)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert bool(found[[*range(5), *range(8, 17)]].isfinite().all())
    if kind == "bf16":
        rows = in_triton.grouped_wgrad(a.bfloat16().mT, integers(8, 17, 16).bfloat16().mT, ends)
        assert rows.isnan().any(-1).any(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_any_size(kind: str) -> None:
    """Sums in fp32, in another order: within a last bit or two of bf16."""
    ends = ends_of([7, 0, 20])
    a, b = operands(kind, random_rows(9, 27, 256, reach=1), random_rows(10, 72, 256, reach=1).view(3, 24, 256))
    found, wanted = in_triton.grouped_mm(a, b, ends).float(), reference.grouped_mm(a, b, ends).float()
    assert float((found - wanted).norm() / wanted.norm()) < 2e-3
    assert float((found == wanted).float().mean()) > 0.95


def test_rows_beyond_the_last_end_are_left_alone() -> None:
    a, b = integers(11, 40, 64).bfloat16(), integers(12, 2, 16, 64).bfloat16()
    ends = ends_of([3, 9])
    found = in_triton.grouped_mm(a, b, ends)
    assert torch.equal(found[:12], reference.grouped_mm(a, b, ends)[:12])


def test_what_no_kernel_multiplies_is_told() -> None:
    ends = ends_of([2])
    with pytest.raises(CannotQuantise, match="no kernel multiplies float32 by float32"):
        in_triton.grouped_mm(torch.ones(2, 64), torch.ones(1, 8, 64), ends)
    with pytest.raises(CannotQuantise, match="no kernel multiplies MXFP8 by bfloat16"):
        in_triton.grouped_mm(FORMATS["mxfp8"].quantise(torch.ones(2, 64)), torch.ones(1, 8, 64).bfloat16(), ends)
    with pytest.raises(CannotQuantise, match="a has rows of 36 numbers, which are not a multiple of 16 bytes"):
        in_triton.grouped_mm(torch.ones(2, 36).bfloat16(), torch.ones(1, 8, 36).bfloat16(), ends)
    with pytest.raises(CannotQuantise, match="if K is a multiple of 64"):
        in_triton.grouped_mm(torch.ones(2, 40).bfloat16(), torch.ones(1, 40, 8).bfloat16().mT, ends)
    with pytest.raises(CannotQuantise, match=r"found the shapes \(2, 64\), \(1, 8, 32\) and \(1,\)"):
        in_triton.grouped_mm(torch.ones(2, 64).bfloat16(), torch.ones(1, 8, 32).bfloat16(), ends)
    with pytest.raises(CannotQuantise, match="wgrad takes bf16"):
        in_triton.grouped_wgrad(torch.ones(8, 2), torch.ones(8, 2), ends)
    tiles, blocks = (FORMATS[name].quantise(torch.ones(8, 32)) for name in ("fp8_tile", "fp8_block"))
    with pytest.raises(CannotQuantise, match="no kernel computes a weight gradient of BlockFP8 by BlockFP8"):
        in_triton.grouped_wgrad(tiles, blocks, ends)
    with pytest.raises(CannotQuantise, match=r"R a multiple of 16, not \(8, 32\) and \(8, 24\)"):
        in_triton.grouped_wgrad(tiles, FORMATS["fp8_tile"].quantise(torch.ones(8, 24)), ends)
