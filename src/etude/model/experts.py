"""The matmuls of the routed experts, all reached through `expert_matmul`.

Emulated low precision is delegated to `precision/rounded.py`, and layers built from low-precision kernels to
`precision/kernels`. Weights that are stored quantised (`ServedExperts` in rounding.py) do not pass through this module.
In all other cases one of five functions computes the same result, given the experts' stacked gate, up and down
projections and their adapters:
- `experts_reference`: one expert after the other, plain torch. It is the specification that low-precision kernels are
  tested against.
- `experts_grouped`: tokens sorted by expert, grouped matmuls. Fastest for training batches.
- `experts_wide`: all experts joined to one wide SwiGLU. Each expert's share of the hidden activations is multiplied by
  the token's gate for that expert, which is 0 unless the token is routed to it. This computes every expert for every
  token. Yet it is fastest for the few dozen tokens of a small model's decode step, where the number of calls dominates
  the cost.
- `experts_padded`: every expert gets as many rows as the busiest one, rounded up, so that three batched matmuls
  suffice. Fastest for a few hundred tokens of a small model, where each grouped matmul would be too small.
- `experts_tiled`: each call computes one tile (a fixed number of rows) of every expert, and there are as many calls as
  the busiest expert has tiles. So a token's result depends on that token alone. Used only with `invariant`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.lora import ExpertAdapters, LowRank, Product, projected
from etude.model.placing import Gather, Spread, count_experts, pair_rows, tokens_of_rows
from etude.model.precision.kernels import ExpertKernels, experts_by_kernels
from etude.model.precision.numerics import Numerics
from etude.model.precision.rounded import rounded_experts
from etude.model.tiles import grouped, silu, tile_rows, weighted_sum

WIDE_MAX_PAIRS = 256
"""Maximum number of token-expert pairs for which `experts_wide` is used."""
PADDED_MAX_PAIRS = 4096
"""Maximum number of token-expert pairs for which `experts_padded` is used. With more pairs, grouped matmuls are large
enough, and the cost of a matmul's first call with a new shape matters little."""
SMALL_WIDTH = 4096
"""Maximum inner width of all experts together for which `experts_wide` and `experts_padded` are used. These functions
make fewer calls but compute more, which pays only for small layers."""
ROWS_STEP = 32
"""`experts_padded`, and on a CPU `experts_grouped`, pad an expert's rows to a multiple of this, so that few shapes
occur: on a CPU the first matmul of a shape takes 0.6 ms, a later one 0.03 ms."""


def expert_matmul(
    x_nd: Tensor,
    experts_nk: Tensor,
    gates_nk: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    numerics: Numerics | None = None,
    invariant: bool = False,
    kernels: ExpertKernels | None = None,
    lora: ExpertAdapters | None = None,
) -> Tensor:
    """Compute sum over k of gates[n,k] * down[e] (silu(gate[e] x) * (up[e] x)) with e = experts[n,k].

    gate and up are [E, I, D], down is [E, D, I]; the experts of one token are distinct. If `kernels` are given, they
    compute the layer in their format; else, if `numerics` is given, it emulates low precision. With neither,
    `invariant` makes a token's result independent of the other tokens. `lora` adapts the three stacks; neither kernels
    nor emulation know adapters, and `compute_with` refuses them.
    """
    if kernels is not None:
        return experts_by_kernels(x_nd, experts_nk, gates_nk, (gate, up, down), kernels)
    if numerics is not None:
        return rounded_experts(x_nd, experts_nk, gates_nk, (gate, up), (down,), numerics)
    if invariant:
        return experts_tiled(x_nd, experts_nk, gates_nk, gate, up, down, lora=lora)
    width = gate.shape[0] * gate.shape[1]
    if width <= SMALL_WIDTH and not torch.is_grad_enabled():
        if experts_nk.numel() <= WIDE_MAX_PAIRS:
            return experts_wide(x_nd, experts_nk, gates_nk, gate, up, down, lora=lora)
        if experts_nk.numel() <= PADDED_MAX_PAIRS:
            return experts_padded(x_nd, experts_nk, gates_nk, gate, up, down, lora=lora)
    if _grouped_fits(x_nd, gate):
        return experts_grouped(x_nd, experts_nk, gates_nk, gate, up, down, lora=lora)
    return experts_reference(x_nd, experts_nk, gates_nk, gate, up, down, lora=lora)


def experts_reference(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, *stacks: Tensor, lora: ExpertAdapters | None = None
) -> Tensor:
    out = torch.zeros_like(x_nd)

    def of_expert(number: int) -> Product:
        return lambda x, stack: F.linear(x, stack[number])

    for expert in range(len(stacks[0])):
        token, choice = (experts_nk == expert).nonzero(as_tuple=True)
        y = _swiglu(x_nd[token], stacks, lora, of_expert(expert))
        out = out.index_add(0, token, (y * gates_nk[token, choice, None]).to(out.dtype))
    return out


def experts_wide(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, *stacks: Tensor, lora: ExpertAdapters | None = None
) -> Tensor:
    gate, up, down = stacks
    experts = len(gate)
    weight_ne = x_nd.new_zeros(x_nd.shape[0], experts).scatter(1, experts_nk, gates_nk.to(x_nd.dtype))

    def spread(x_nd: Tensor, stack: Tensor) -> Tensor:
        return F.linear(x_nd, stack.flatten(0, 1)).view(len(x_nd), experts, -1)

    def each(x_nei: Tensor, stack: Tensor) -> Tensor:
        return torch.bmm(x_nei.transpose(0, 1), stack.mT).transpose(0, 1)

    def joined(x_nei: Tensor, stack: Tensor) -> Tensor:
        return F.linear(x_nei.flatten(1), stack.transpose(0, 1).flatten(1))

    def adapted(y: Tensor, adapter: LowRank | None, x: Tensor, times_a: Product, times_b: Product) -> Tensor:
        return y if adapter is None else y + cast(Tensor, adapter(x, times_a, times_b))

    low_gate, low_up, low_down = _adapters(lora)
    g = adapted(spread(x_nd, gate), low_gate, x_nd, spread, each)
    h = F.silu(g) * adapted(spread(x_nd, up), low_up, x_nd, spread, each) * weight_ne.unsqueeze(-1)
    return adapted(joined(h, down), low_down, h, each, joined)


def experts_padded(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, *stacks: Tensor, lora: ExpertAdapters | None = None
) -> Tensor:
    experts, choices = len(stacks[0]), experts_nk.shape[1]
    flat = experts_nk.flatten()
    count = count_experts(flat, experts)
    rows = -(-int(count.max()) // ROWS_STEP) * ROWS_STEP
    row_of_pair = pair_rows(flat, count, torch.arange(experts, device=flat.device) * rows)
    x = x_nd.index_select(0, tokens_of_rows(row_of_pair, experts * rows, choices)).view(experts, rows, -1)
    y = _swiglu(x, stacks, lora, lambda x, stack: torch.bmm(x, stack.mT))
    y = y.flatten(0, 1).index_select(0, row_of_pair).view(*experts_nk.shape, -1)
    return torch.bmm(gates_nk.unsqueeze(1).to(y.dtype), y).squeeze(1)


def experts_grouped(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, *stacks: Tensor, lora: ExpertAdapters | None = None
) -> Tensor:
    experts, choices = len(stacks[0]), experts_nk.shape[1]
    flat = experts_nk.flatten()
    count = count_experts(flat, experts)
    if x_nd.device.type == "cpu":
        count_up = (count + (ROWS_STEP - 1)) // ROWS_STEP * ROWS_STEP
        rows = int(count_up.sum())
    else:
        count_up, rows = count, flat.numel()
    ends = count_up.cumsum(0)
    row_of_pair = pair_rows(flat, count, ends - count_up)
    offsets = ends.to(torch.int32)
    x = cast(Tensor, Spread.apply(x_nd, row_of_pair, rows, choices))
    y = _swiglu(x, stacks, lora, lambda x, stack: F.grouped_mm(*_aligned(x, stack), offs=offsets))
    y = cast(Tensor, Gather.apply(y, row_of_pair)).view(*experts_nk.shape, -1)
    return torch.bmm(gates_nk.unsqueeze(1).to(y.dtype), y).squeeze(1)


def experts_tiled(
    x_nd: Tensor, experts_nk: Tensor, gates_nk: Tensor, *stacks: Tensor, lora: ExpertAdapters | None = None
) -> Tensor:
    (experts, _, d), choices, rows = stacks[0].shape, experts_nk.shape[1], tile_rows(x_nd.dtype)
    flat = experts_nk.flatten()
    count = count_experts(flat, experts)
    calls = -(-int(count.max()) // rows)
    turn = pair_rows(flat, count, torch.zeros_like(count))
    row_of_pair = (turn // rows * experts + flat) * rows + turn % rows
    x = cast(Tensor, Spread.apply(x_nd, row_of_pair, calls * experts * rows, choices)).view(calls, experts, rows, d)
    y = _swiglu(x, stacks, lora, grouped, silu)
    y = cast(Tensor, Gather.apply(y.flatten(0, 2), row_of_pair))
    return weighted_sum(gates_nk, y.view(*experts_nk.shape, d))


def _swiglu(
    x: Tensor,
    stacks: Sequence[Tensor],
    lora: ExpertAdapters | None,
    product: Product,
    activate: Callable[[Tensor], Tensor] = F.silu,
) -> Tensor:
    gate, up, down = stacks
    low_gate, low_up, low_down = _adapters(lora)
    h = activate(projected(x, gate, low_gate, product)) * projected(x, up, low_up, product)
    return projected(h, down, low_down, product)


def _adapters(lora: ExpertAdapters | None) -> tuple[LowRank | None, LowRank | None, LowRank | None]:
    return (None, None, None) if lora is None else (lora.gate_proj, lora.up_proj, lora.down_proj)


def _aligned(x: Tensor, stack: Tensor) -> tuple[Tensor, Tensor]:
    """Return the operands of a grouped matmul, whose rows must be whole 16 bytes: an adapter's rank is filled up with
    zeros."""
    step = 16 // x.element_size()
    missing = (0, x.shape[-1] - stack.shape[2], 0, -stack.shape[1] % step)
    return x, (F.pad(stack, missing) if any(missing) else stack).mT


def _grouped_fits(x_nd: Tensor, gate: Tensor) -> bool:
    """Whether torch's grouped_mm takes the operands: at least one row, rows of whole 16 bytes, and on GPUs bf16."""
    aligned = all(size * x_nd.element_size() % 16 == 0 for size in gate.shape[1:])
    return aligned and x_nd.shape[0] > 0 and (x_nd.device.type == "cpu" or x_nd.dtype == torch.bfloat16)
