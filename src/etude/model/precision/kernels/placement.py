"""Where the rows of a ragged batch of experts lie: each expert's tokens one after the other, in the order of the pairs.

Invariant: no two token-expert pairs share a row; expert e has the rows from `ends_e[e - 1]` to `ends_e[e]`, as many as
a multiple of `multiple`; those without a token are zero (`permute`). Nothing waits for a GPU: the number of rows is a
bound, and rows from `ends_e[-1]` on belong to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Placement:
    row_nk: Tensor
    """int32: the row of each token-expert pair"""
    token_r: Tensor
    """int32: the token of each row, -1 where there is none"""
    ends_e: Tensor
    """int32: where each expert's rows end"""


def place(experts_nk: Tensor, experts: int, *, multiple: int = 1) -> Placement:
    """`multiple`: 1, or the block of the format whose columns are quantised (32, 128)."""
    flat, choices = experts_nk.flatten(), experts_nk.shape[-1]
    pairs, device = flat.numel(), flat.device
    rows = -(-(pairs + min(experts, pairs) * (multiple - 1)) // multiple) * multiple
    count = torch.zeros(experts, dtype=torch.int64, device=device).scatter_add_(0, flat, torch.ones_like(flat))
    filled = (count + (multiple - 1)) // multiple * multiple
    ends = filled.cumsum(0)
    order = flat.argsort(stable=True)
    expert = flat[order]
    row = (ends - filled - (count.cumsum(0) - count))[expert] + torch.arange(pairs, device=device)
    row_nk = torch.empty(pairs, dtype=torch.int32, device=device).scatter_(0, order, row.int())
    token = torch.full((rows,), -1, dtype=torch.int32, device=device).scatter_(0, row, (order // choices).int())
    return Placement(row_nk.view_as(experts_nk), token, ends.int())
