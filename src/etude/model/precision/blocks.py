"""What the formats share: which tensors they take, how those are cut into rows and blocks, and the largest magnitude of
each block.

Rows lie along the contraction axis, which is the last one; whoever contracts along another axis transposes first. Work
goes over tiles of rows that fit in a core's cache, which makes a quantiser several times faster than whole passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from etude.model.errors import CannotQuantise

TILE = 1 << 17
"""Elements of a tile on a CPU: half a MiB in fp32, so that the two buffers and the rows themselves fit in L2."""
_MAGNITUDE = {torch.bfloat16: (torch.int16, 0x7FFF), torch.float16: (torch.int16, 0x7FFF)}
_MAGNITUDE[torch.float32] = (torch.int32, 0x7FFFFFFF)


def rows_of(x: Tensor, block: int, name: str) -> Tensor:
    """x as contiguous rows [N, K], if the format takes it."""
    if x.dtype not in _MAGNITUDE:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _MAGNITUDE)
        raise CannotQuantise(f"{name} is made from {known}; this tensor is {str(x.dtype).removeprefix('torch.')}")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise CannotQuantise(f"{name} needs a contraction axis with something in it; the shape is {tuple(x.shape)}")
    if x.shape[-1] % block:
        raise CannotQuantise(
            f"{name} has blocks of {block} along the last axis, which {x.shape[-1]} is no multiple of; "
            f"pad the axis with zeros to {-(-x.shape[-1] // block) * block} before"
        )
    return as_rows(x.detach()).contiguous()


@dataclass(frozen=True, slots=True)
class Tile:
    rows: slice
    values: Tensor
    """fp32 [n, K], in memory that the next tile takes over, like `work`: new memory costs more than the arithmetic."""
    work: Tensor
    small: Tensor
    """uint8 [2, n, K], likewise"""


def tiles(rows: Tensor) -> Iterator[Tile]:
    """Rows by the cacheful, on a GPU all at once. The values are not filled in."""
    count, width = rows.shape
    at_once = min(count, max(1, TILE // width)) if rows.device.type == "cpu" else count
    values, work = torch.empty(2, at_once, width, dtype=torch.float32, device=rows.device)
    small = torch.empty(2, at_once, width, dtype=torch.uint8, device=rows.device)
    for start in range(0, count, max(at_once, 1)):
        stop = min(start + at_once, count)
        n = stop - start
        yield Tile(slice(start, stop), values[:n], work[:n], small[:, :n])


def block_absmax(rows: Tensor, block: int) -> Tensor:
    """Largest magnitude of each block in fp32: [N, K] -> [N, K / block]. NaN if one of them is.

    Taken from the bit patterns, as integers: without their signs these are ordered as the magnitudes are, infinity
    above all numbers and NaN above infinity.
    """
    kind, mask = _MAGNITUDE[rows.dtype]
    largest = torch.empty(rows.shape[0], rows.shape[1] // block, dtype=kind, device=rows.device)
    for tile in tiles(rows):
        bits = tile.work.view(kind)[:, : rows.shape[1]]
        torch.bitwise_and(rows[tile.rows].view(kind), mask, out=bits)
        torch.amax(bits.unflatten(-1, (-1, block)), -1, out=largest[tile.rows])
    return largest.view(rows.dtype).to(torch.float32)


def sign_bits(rows: Tensor, tile: Tile) -> Tensor:
    """Of the tile: 8 where a number is negative, negative zero included, 0 elsewhere. Uses `small[1]` and `work`."""
    kind, _ = _MAGNITUDE[rows.dtype]
    high = tile.work.view(kind)[:, : rows.shape[1]]
    torch.bitwise_right_shift(rows[tile.rows].view(kind), 8 * rows.element_size() - 4, out=high)
    return tile.small[1].copy_(high).bitwise_and_(8)


def by_block(values: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """[n, K] and [n, K / block], viewed so that each block meets its scale."""
    return values.unflatten(-1, (scales.shape[-1], -1)), scales.unsqueeze(-1)


def like(x: Tensor, rows: Tensor) -> Tensor:
    """Rows that were made from x, with its leading dimensions."""
    return rows.view(*x.shape[:-1], rows.shape[-1])


def as_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def multiply_(values: Tensor, scales: Tensor) -> Tensor:
    blocks, factors = by_block(values, scales)
    blocks.mul_(factors)
    return values


def divide_(values: Tensor, scales: Tensor) -> Tensor:
    """Rounded as IEEE 754 says."""
    blocks, divisors = by_block(values, scales)
    blocks.div_(divisors)
    return values
