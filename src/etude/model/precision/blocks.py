"""What the formats share: which tensors they take, how those are cut into rows and blocks, and the largest magnitude of
each block.

Rows lie along the contraction axis, which is the last one; whoever contracts along another axis transposes first. Work
goes over tiles of rows, near enough to a core's cache, which makes a quantiser several times faster than whole passes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from etude.model.errors import CannotQuantise

TILE = 1 << 18
"""Elements of a tile on a CPU: one MiB in fp32. Half as many fit in L2 better, but each call of torch's is an overhead,
and the calls of a tile are some thirty."""
_KEPT = threading.local()
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
class Buffers:
    """Memory for one tile, which the next one takes over: new memory costs as much as half of the arithmetic. A thread
    keeps it for its next tensor, too; what is small would pay for little else."""

    values: Tensor
    """fp32 [n, K]"""
    work: Tensor
    """fp32 [n, K]"""
    codes: Tensor
    """uint8 [n, K]"""
    signs: Tensor
    """uint8 [n, K]"""

    @classmethod
    def of(cls, count: int, width: int, device: torch.device) -> Buffers:
        if device.type == "cpu" and count * width <= TILE:
            if not hasattr(_KEPT, "buffers"):
                with torch.inference_mode(False):  # or they could be used in that mode alone
                    _KEPT.buffers = cls._fresh((TILE,), device)
            kept: Buffers = _KEPT.buffers
            return cls(*(getattr(kept, field.name)[: count * width].view(count, width) for field in fields(cls)))
        return cls._fresh((count, width), device)

    @classmethod
    def _fresh(cls, shape: tuple[int, ...], device: torch.device) -> Buffers:
        values, work = torch.empty(2, *shape, dtype=torch.float32, device=device)
        codes, signs = torch.empty(2, *shape, dtype=torch.uint8, device=device)
        return cls(values, work, codes, signs)

    def first(self, count: int) -> Buffers:
        return Buffers(*(getattr(self, field.name)[:count] for field in fields(self)))


def tiles(rows: Tensor, *beside: Tensor) -> Iterator[tuple[Buffers, tuple[Tensor, ...]]]:
    """`rows` of K numbers by the cacheful, on a GPU all at once, each time with as many of what lies beside them. Of a
    thread's iterations one must end before the next begins."""
    count, width = rows.shape
    at_once = max(1, min(count, TILE // width) if rows.device.type == "cpu" else count)
    buffers = Buffers.of(min(at_once, count), width, rows.device)
    for parts in zip(*(tensor.split(at_once) for tensor in (rows, *beside)), strict=True):
        n = parts[0].shape[0]
        yield (buffers if n == at_once else buffers.first(n)), parts


def block_absmax(rows: Tensor, block: int) -> Tensor:
    """Largest magnitude of each block in fp32: [N, K] -> [N, K / block]. NaN if one of them is.

    Taken from the bit patterns, as integers: without their signs these are ordered as the magnitudes are, infinity
    above all numbers and NaN above infinity.
    """
    kind, mask = _MAGNITUDE[rows.dtype]
    largest = torch.empty(rows.shape[0], rows.shape[1] // block, dtype=kind, device=rows.device)
    for buffers, (part, out) in tiles(rows.view(kind), largest):
        bits = torch.bitwise_and(part, mask, out=buffers.work.view(kind)[:, : rows.shape[1]])
        torch.amax(bits.unflatten(-1, (-1, block)), -1, out=out)
    return largest.view(rows.dtype).to(torch.float32)


def negatives(part: Tensor, buffers: Buffers) -> Tensor:
    """255 where a number is negative, negative zero included, 0 elsewhere; in `signs`, by way of `work`."""
    kind, _ = _MAGNITUDE[part.dtype]
    signs = buffers.work.view(kind)[:, : part.shape[1]]
    return buffers.signs.copy_(torch.bitwise_right_shift(part.view(kind), 8 * part.element_size() - 1, out=signs))


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
