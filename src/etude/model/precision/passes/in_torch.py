"""Quantising and dequantising loops in plain torch: easier to read than the Numba loops, but slower on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from etude.model.precision.elements import E2M1, Element, from_e2m1, from_e4m3, pack_pairs, round_to_, to_e2m1, to_e4m3
from etude.model.precision.passes import RoundingScales

_MAGNITUDE = {
    torch.bfloat16: (torch.int16, 0x7FFF),
    torch.float16: (torch.int16, 0x7FFF),
    torch.float32: (torch.int32, 0x7FFFFFFF),
}


def by() -> str:
    return "plain torch"


def largest(rows: Tensor, block: int) -> Tensor:
    """Return each block's largest magnitude. Magnitudes are compared as bits, which sort NaN after infinity."""
    kind, mask = _MAGNITUDE[rows.dtype]
    bits: Tensor = (rows.view(kind) & mask).unflatten(-1, (-1, block))
    return bits.amax(-1).view(rows.dtype).float()


def encode_e4m3(rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
    return to_e4m3(_scaled(rows, scales, divide=divide))


def encode_e2m1(rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
    magnitudes = _scaled(rows, scales, divide=divide).abs_().clamp_max_(E2M1.largest)
    return pack_pairs(to_e2m1(magnitudes) | rows.signbit().to(torch.uint8) << 3)


def round_to(rows: Tensor, element: Element, by: RoundingScales, dtype: torch.dtype, *, divide: bool) -> Tensor:
    values = _scaled(rows, by.scales, divide=divide)
    return _back(round_to_(values, element), by.back, by.outer, dtype)


def decode_e4m3(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    return _back(from_e4m3(codes), scales, None, dtype)


def decode_e2m1(packed: Tensor, scales: Tensor, outer: Tensor, dtype: torch.dtype) -> Tensor:
    return _back(from_e2m1(packed), scales, outer, dtype)


def _scaled(rows: Tensor, scales: Tensor, *, divide: bool) -> Tensor:
    """Return rows / scales (with `divide`) or rows * scales in fp32."""
    values = rows.to(torch.float32, copy=True)
    blocks, scales = _by_block(values, scales)
    blocks.div_(scales) if divide else blocks.mul_(scales)
    return values


def _back(values: Tensor, scales: Tensor, outer: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Multiply values in place by their block's scale and, if given, by their row's outer scale."""
    blocks, scales = _by_block(values, scales)
    blocks.mul_(scales)
    return (values if outer is None else values.mul_(outer)).to(dtype)


def _by_block(values: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    return values.unflatten(-1, (scales.shape[-1], -1)), scales.unsqueeze(-1)
