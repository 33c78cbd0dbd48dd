"""INT4 weights with one scale per group, as compressed-tensors packs them (Kimi-K2-Thinking, Kimi-K2.5). Only read.

Invariant: a number is its code, an integer from -8 to 7, times its group's scale, rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PER_WORD = 8
_LOWEST = -8


@dataclass(frozen=True, slots=True)
class Int4:
    codes: Tensor
    """Codes + 8, int32 [M, ceil(K / 8)]: eight to a word, the first in the lowest bits."""
    scales: Tensor
    """Scale of each group, a float [M, groups]. All groups have K / groups numbers."""
    width: int
    """K."""


def codes_of_int4(q: Int4) -> Tensor:
    """Return the codes one by one: int32 [M, K]."""
    shifts = torch.arange(0, 4 * PER_WORD, 4, dtype=torch.int32, device=q.codes.device)
    codes = (q.codes.unsqueeze(-1) >> shifts).bitwise_and_(0xF).flatten(-2)
    return codes[:, : q.width].add(_LOWEST)


def dequantise_int4(q: Int4, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    rows, groups = q.scales.shape
    codes = codes_of_int4(q).view(rows, groups, q.width // groups)
    return (codes * q.scales.to(torch.float32).unsqueeze(-1)).view(rows, q.width).to(dtype)
