"""The matmuls of the routed experts: every one of them goes through `expert_matmul`.

Four implementations compute the same function:
- `experts_reference`: one expert after the other, plain torch. The seam's specification; low-precision kernels are held
  against it.
- `experts_grouped`: tokens sorted by expert, grouped matmuls. Fastest for training batches.
- `experts_wide`: all experts as one wide SwiGLU with a gate per block. It computes experts that nobody asked for, yet
  wins for the few dozen tokens of a decode step of a small model, where the number of calls is what costs.
- `experts_padded`: every expert gets as many rows as the busiest, rounded up, so that three batched matmuls do. For the
  few hundred tokens of a step of a small model, where grouped matmuls are too small for their number.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

WIDE_MAX_PAIRS = 256
"""Token-expert pairs up to which the wide form is taken."""
PADDED_MAX_PAIRS = 4096
"""And the padded one; the cost of a new shape is small beside that of more."""
SMALL_WIDTH = 4096
"""Widest concatenation of all experts for which either pays."""
ROWS_STEP = 32
"""Rows of an expert are filled up to a multiple on a CPU, so that matmuls meet few shapes: there the first of a shape
takes .6 ms, a later one .03."""


def expert_matmul(x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """sum over k of gates[n,k] * down[e] (silu(gate[e] x) * (up[e] x)) with e = experts[n,k].

    gate and up are [E, I, D], down is [E, D, I]; the experts of one token are distinct.
    """
    width = gate.shape[0] * gate.shape[1]
    if width <= SMALL_WIDTH and not torch.is_grad_enabled():
        if experts_nk.numel() <= WIDE_MAX_PAIRS:
            return experts_wide(x_nd, experts_nk, gates_nk, gate, up, down)
        if experts_nk.numel() <= PADDED_MAX_PAIRS:
            return experts_padded(x_nd, experts_nk, gates_nk, gate, up, down)
    if _grouped_fits(x_nd, gate):
        return experts_grouped(x_nd, experts_nk, gates_nk, gate, up, down)
    return experts_reference(x_nd, experts_nk, gates_nk, gate, up, down)


def experts_reference(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    out = torch.zeros_like(x_nd)
    for expert in range(gate.shape[0]):
        token, choice = (experts_nk == expert).nonzero(as_tuple=True)
        x = x_nd[token]
        y = F.linear(F.silu(F.linear(x, gate[expert])) * F.linear(x, up[expert]), down[expert])
        out = out.index_add(0, token, (y * gates_nk[token, choice, None]).to(out.dtype))
    return out


def experts_wide(x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    experts, inner, d = gate.shape
    weight_ne = x_nd.new_zeros(x_nd.shape[0], experts).scatter(1, experts_nk, gates_nk.to(x_nd.dtype))
    h = F.silu(F.linear(x_nd, gate.reshape(-1, d))) * F.linear(x_nd, up.reshape(-1, d))
    h = (h.view(-1, experts, inner) * weight_ne.unsqueeze(-1)).flatten(1)
    return F.linear(h, down.permute(1, 0, 2).reshape(d, -1))


def experts_padded(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    experts, choices = gate.shape[0], experts_nk.shape[1]
    flat = experts_nk.flatten()
    count = torch.bincount(flat, minlength=experts)
    rows = -(-int(count.max()) // ROWS_STEP) * ROWS_STEP
    place = _places(flat, count, torch.arange(experts, device=flat.device) * rows)
    x = x_nd.index_select(0, _tokens(place, experts * rows, choices)).view(experts, rows, -1)
    y = torch.bmm(F.silu(torch.bmm(x, gate.mT)) * torch.bmm(x, up.mT), down.mT)
    y = y.flatten(0, 1).index_select(0, place).view(*experts_nk.shape, -1)
    return torch.bmm(gates_nk.unsqueeze(1).to(y.dtype), y).squeeze(1)


def experts_grouped(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    experts, choices = gate.shape[0], experts_nk.shape[1]
    flat = experts_nk.flatten()
    count = torch.bincount(flat, minlength=experts)
    if x_nd.device.type == "cpu":
        count_up = (count + (ROWS_STEP - 1)) // ROWS_STEP * ROWS_STEP
        rows = int(count_up.sum())
    else:
        count_up, rows = count, flat.numel()
    ends = count_up.cumsum(0)
    place = _places(flat, count, ends - count_up)
    offsets = ends.to(torch.int32)
    x = cast(Tensor, _Spread.apply(x_nd, place, rows, choices))
    h = F.silu(F.grouped_mm(x, gate.mT, offs=offsets)) * F.grouped_mm(x, up.mT, offs=offsets)
    y = cast(Tensor, _Gather.apply(F.grouped_mm(h, down.mT, offs=offsets), place)).view(*experts_nk.shape, -1)
    return torch.bmm(gates_nk.unsqueeze(1).to(y.dtype), y).squeeze(1)


def _places(flat: Tensor, count: Tensor, starts: Tensor) -> Tensor:
    """For each token-expert pair its row, where the rows of an expert begin at its start and keep the pairs' order."""
    order = flat.argsort(stable=True)
    pair = torch.arange(flat.numel(), device=flat.device)
    turn = pair - (count.cumsum(0) - count).repeat_interleave(count, output_size=flat.numel())
    return torch.empty_like(order).scatter_(0, order, turn).add_(starts[flat])


def _tokens(place: Tensor, rows: int, choices: int) -> Tensor:
    """For each row its token; a row that no pair has repeats the first one."""
    token = torch.arange(place.numel(), device=place.device) // choices
    return torch.zeros(rows, dtype=torch.int64, device=place.device).scatter_(0, place, token)


def _grouped_fits(x_nd: Tensor, gate: Tensor) -> bool:
    """grouped_mm wants rows of whole 16-byte pieces, and bf16 on CUDA."""
    aligned = all(size * x_nd.element_size() % 16 == 0 for size in gate.shape[1:])
    return aligned and x_nd.shape[0] > 0 and (x_nd.device.type == "cpu" or x_nd.dtype == torch.bfloat16)


class _Spread(torch.autograd.Function):
    """Rows repeated once per choice, each in its place. The gradient is a gather too, which on a CPU is several times
    faster than the scattered sum that autograd would write, and has one fixed order of summation."""

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, place: Tensor, rows: int, choices: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.choices = choices
        return x_nd.index_select(0, _tokens(place, rows, choices))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        rows = grads[0].index_select(0, place)
        return rows.view(-1, ctx.choices, rows.shape[-1]).sum(1), None, None, None


class _Gather(torch.autograd.Function):
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
