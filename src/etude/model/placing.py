"""Which row every token has at each of its experts: rows sorted by expert, there and back.

The rows of an expert lie side by side; those between the last of them and the first of the next expert's are nobody's.
Plain torch moves tokens by `Spread` and `Gather`, kernels by permutations of their own (`precision/kernels`), to the
same places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def places(flat: Tensor, count: Tensor, starts: Tensor) -> Tensor:
    """For each token-expert pair its row, where the rows of an expert begin at its start and keep the pairs' order."""
    order = flat.argsort(stable=True)
    pair = torch.arange(flat.numel(), device=flat.device)
    turn = pair - (count.cumsum(0) - count).repeat_interleave(count, output_size=flat.numel())
    return torch.empty_like(order).scatter_(0, order, turn).add_(starts[flat])


def tokens_of_rows(place: Tensor, rows: int, choices: int, nobody: int = 0) -> Tensor:
    """For each row its token; `nobody` for a row that no pair has."""
    token = torch.arange(place.numel(), device=place.device) // choices
    return torch.full((rows,), nobody, dtype=torch.int64, device=place.device).scatter_(0, place, token)


@dataclass(frozen=True, slots=True)
class Placement:
    """What kernels are told: expert e has the rows from `ends_e[e - 1]` to `ends_e[e]`."""

    row_nk: Tensor
    """int32: the row of each token-expert pair."""
    token_r: Tensor
    """int32: the token of each row, -1 where there is none."""
    ends_e: Tensor
    """int32: where each expert's rows end."""


def place(experts_nk: Tensor, experts: int, *, multiple: int = 1) -> Placement:
    """Each expert has as many rows as a multiple of `multiple`: 1, or the block of the format whose columns are
    quantised (32, 128). Nothing waits for a GPU: the number of rows is a bound, and those from `ends_e[-1]` on belong
    to nobody."""
    flat, choices = experts_nk.flatten(), experts_nk.shape[-1]
    pairs = flat.numel()
    rows = -(-(pairs + min(experts, pairs) * (multiple - 1)) // multiple) * multiple
    # Not bincount, which waits.
    count = flat.new_zeros(experts).scatter_add_(0, flat, torch.ones_like(flat))
    filled = (count + (multiple - 1)) // multiple * multiple
    ends = filled.cumsum(0)
    row = places(flat, count, ends - filled)
    token = tokens_of_rows(row, rows, choices, nobody=-1)
    return Placement(row.view_as(experts_nk).int(), token.int(), ends.int())


class Spread(torch.autograd.Function):
    """Rows repeated once per choice, each in its place; where `zeros`, those of nobody are zero, else whatever costs
    least. The gradient is a gather too, which on a CPU is several times faster than the scattered sum that autograd
    would write, and has one fixed order of summation."""

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, place: Tensor, rows: int, choices: int, zeros: bool = False) -> Tensor:
        ctx.save_for_backward(place)
        ctx.choices = choices
        if zeros:
            return F.pad(x_nd, (0, 0, 0, 1)).index_select(0, tokens_of_rows(place, rows, choices, nobody=x_nd.shape[0]))
        return x_nd.index_select(0, tokens_of_rows(place, rows, choices))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (place,) = ctx.saved_tensors
        rows = grads[0].index_select(0, place)
        return rows.view(-1, ctx.choices, rows.shape[-1]).sum(1), None, None, None, None


class Gather(torch.autograd.Function):
    """A row per pair. No two pairs share one, so the gradient is a copy; rows that no pair has get none."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.rows = y.shape[0]
        return y.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        out = grads[0].new_zeros(ctx.rows, grads[0].shape[-1])
        return out.index_copy_(0, place, grads[0]), None
