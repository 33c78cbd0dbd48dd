"""Moves tokens to rows sorted by expert, and back: each token has one row at each of its experts.

The rows of an expert are adjacent; rows between its last one and the next expert's first are unused. Plain torch moves
tokens with `Spread` and `Gather`; kernels move them to the same rows with their own functions (`precision/kernels`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def count_experts(experts: Tensor, count: int, counted: Tensor | None = None) -> Tensor:
    """Return how often each of `count` experts occurs; `counted` marks the occurrences that count, all by default.
    Unlike bincount, this does not make the CPU wait for a GPU."""
    flat = experts.flatten()
    ones = flat.new_ones(1) if counted is None else counted.to(flat.dtype)
    return flat.new_zeros(count).scatter_add_(0, flat, ones.expand_as(experts).flatten())


def pair_rows(flat: Tensor, count: Tensor, starts: Tensor) -> Tensor:
    """Return the row of each token-expert pair. `flat` holds the expert of each pair; `count` and `starts` hold the
    number of pairs and the first row of each expert. Pairs of one expert keep their order."""
    order = flat.argsort(stable=True)
    pair = torch.arange(flat.numel(), device=flat.device)
    turn = pair - (count.cumsum(0) - count).repeat_interleave(count, output_size=flat.numel())
    return torch.empty_like(order).scatter_(0, order, turn).add_(starts[flat])


def tokens_of_rows(row_of_pair: Tensor, rows: int, choices: int, nobody: int = 0) -> Tensor:
    """Return the token in each row, given the row of each pair and the experts per token; unused rows get `nobody`."""
    token = torch.arange(row_of_pair.numel(), device=row_of_pair.device) // choices
    return torch.full((rows,), nobody, dtype=torch.int64, device=row_of_pair.device).scatter_(0, row_of_pair, token)


@dataclass(frozen=True, slots=True)
class Placement:
    """The rows of token-expert pairs, for kernels. Expert e has the rows from `ends_e[e - 1]` (or 0) to `ends_e[e]`."""

    row_nk: Tensor
    """int32: the row of each token-expert pair."""
    token_r: Tensor
    """int32: the token in each row; -1 if the row is unused."""
    ends_e: Tensor
    """int32: where each expert's rows end (exclusive)."""


def place_pairs(experts_nk: Tensor, experts: int, *, multiple: int = 1) -> Placement:
    """Assign a row to each token-expert pair, sorted by expert.

    Each expert's rows are rounded up to a multiple of `multiple`: the block size if blocks along the rows are going to
    be quantised. There are as many rows as any routing of so many pairs could need, so that the CPU need not wait for
    the GPU to count; rows from `ends_e[-1]` on are unused.
    """
    flat, choices = experts_nk.flatten(), experts_nk.shape[-1]
    pairs = flat.numel()
    rows = -(-(pairs + min(experts, pairs) * (multiple - 1)) // multiple) * multiple
    count = count_experts(flat, experts)
    filled = (count + (multiple - 1)) // multiple * multiple
    ends = filled.cumsum(0)
    row = pair_rows(flat, count, ends - filled)
    token = tokens_of_rows(row, rows, choices, nobody=-1)
    return Placement(row.view_as(experts_nk).int(), token.int(), ends.int())


class Spread(torch.autograd.Function):
    """Copy each token to its row at each of its experts. Unused rows are zero if `zeros`, else arbitrary.

    A token's gradient is the sum of its rows' gradients. They are gathered, which on a CPU is far faster than a
    scatter-add, and summed in a fixed order.
    """

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, row_of_pair: Tensor, rows: int, choices: int, zeros: bool = False) -> Tensor:
        ctx.save_for_backward(row_of_pair)
        ctx.choices = choices
        if zeros:
            return F.pad(x_nd, (0, 0, 0, 1)).index_select(
                0, tokens_of_rows(row_of_pair, rows, choices, nobody=x_nd.shape[0])
            )
        return x_nd.index_select(0, tokens_of_rows(row_of_pair, rows, choices))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (row_of_pair,) = ctx.saved_tensors
        rows = grads[0].index_select(0, row_of_pair)
        return rows.view(-1, ctx.choices, rows.shape[-1]).sum(1), None, None, None, None


class Gather(torch.autograd.Function):
    """Take, for each token-expert pair, the row of `y` that holds its values. No row belongs to two pairs, so the
    backward pass copies gradients and adds nothing up."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, row_of_pair: Tensor) -> Tensor:
        ctx.save_for_backward(row_of_pair)
        ctx.rows = y.shape[0]
        return y.index_select(0, row_of_pair)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (row_of_pair,) = ctx.saved_tensors
        out = grads[0].new_zeros(ctx.rows, grads[0].shape[-1])
        return out.index_copy_(0, row_of_pair, grads[0]), None
