"""The matmuls of the routed experts: every one of them goes through `expert_matmul`.

Four implementations compute the same function:
- `experts_reference`: one expert after the other, plain torch. The seam's specification; low-precision kernels are held
  against it.
- `experts_grouped`: tokens sorted by expert, grouped matmuls. Fastest for training batches.
- `experts_wide`: all experts as one wide SwiGLU with a gate per block. It computes experts that nobody asked for, yet
  wins for the few dozen tokens of a decode step of a small model, where the number of calls is what costs.
- `experts_padded`: every expert gets as many rows as the busiest, rounded up, so that three batched matmuls do. For the
  few hundred tokens of a step of a small model: grouped matmuls would meet other shapes at every call, and on a CPU
  the first matmul of a shape costs several times the later ones.
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
    order = flat.argsort(stable=True)
    pair = torch.arange(flat.numel(), device=flat.device)
    turn = pair - (count.cumsum(0) - count).repeat_interleave(count)  # within its expert, of the pairs in order
    place = torch.empty_like(order).scatter_(0, order, turn).add_(flat * rows)
    token = torch.zeros(experts * rows, dtype=torch.int64, device=flat.device).scatter_(0, place, pair // choices)
    x = x_nd.index_select(0, token).view(experts, rows, -1)
    y = torch.bmm(F.silu(torch.bmm(x, gate.mT)) * torch.bmm(x, up.mT), down.mT)
    y = y.flatten(0, 1).index_select(0, place).view(*experts_nk.shape, -1)
    return torch.bmm(gates_nk.unsqueeze(1).to(y.dtype), y).squeeze(1)


def experts_grouped(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    flat = experts_nk.flatten()
    order = flat.argsort(stable=True)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    ends = torch.bincount(flat, minlength=gate.shape[0]).cumsum(0).to(torch.int32)
    x = _sort_rows(x_nd, order, inverse, experts_nk.shape[1])
    h = F.silu(F.grouped_mm(x, gate.mT, offs=ends)) * F.grouped_mm(x, up.mT, offs=ends)
    y = _unsort_rows(F.grouped_mm(h, down.mT, offs=ends), order, inverse).view(*experts_nk.shape, -1)
    return torch.bmm(gates_nk.unsqueeze(1).to(y.dtype), y).squeeze(1)


def _grouped_fits(x_nd: Tensor, gate: Tensor) -> bool:
    """grouped_mm wants rows of whole 16-byte pieces, and bf16 on CUDA."""
    aligned = all(size * x_nd.element_size() % 16 == 0 for size in gate.shape[1:])
    return aligned and x_nd.shape[0] > 0 and (x_nd.device.type == "cpu" or x_nd.dtype == torch.bfloat16)


class _SortRows(torch.autograd.Function):
    """Rows repeated once per choice, in expert order. The gradient is a gather too, which on a CPU is several times
    faster than the scattered sum that autograd would write, and has one fixed order of summation."""

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, order: Tensor, inverse: Tensor, choices: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.choices = choices
        return x_nd.index_select(0, order // choices)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        rows = grads[0].index_select(0, inverse)
        return rows.view(-1, ctx.choices, rows.shape[-1]).sum(1), None, None, None


class _UnsortRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return y.index_select(0, inverse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return grads[0].index_select(0, order), None, None


def _sort_rows(x_nd: Tensor, order: Tensor, inverse: Tensor, choices: int) -> Tensor:
    return cast(Tensor, _SortRows.apply(x_nd, order, inverse, choices))


def _unsort_rows(y: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    return cast(Tensor, _UnsortRows.apply(y, order, inverse))
