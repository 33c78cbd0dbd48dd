"""A whole layer of routed experts, forward and backward, out of the kernels: in bf16, and with FP8 matmuls.

FP8 is `fp8_block` in the forward pass and for the gradients of activations; the gradients of weights stay bf16. Weights
are quantised before, both ways, as a step of many microbatches does it once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.precision.kernels import Placement, choose


@dataclass(frozen=True, slots=True)
class Kit:
    """What differs between the two."""

    matmul: Callable[[Tensor, Any, Tensor], Tensor]
    """Of bf16 rows by weights in the kit's own form."""
    weights: Callable[[Tensor], tuple[Any, Any]]
    """In this form, as they are and transposed."""
    wgrad: Callable[[Tensor, Tensor, Tensor], Tensor]


def bf16_kit(device: str, implementation: str = "torch") -> Kit:
    matmul = choose("grouped_mm", implementation, "bf16", device)
    wgrad = choose("grouped_wgrad", implementation, "bf16", device)
    return Kit(matmul, lambda w: (w, w.mT), wgrad)


def fp8_kit(device: str) -> Kit:
    matmul = choose("grouped_mm", "triton", "fp8_block", device)
    quantise = choose("quantise", "triton", "fp8_tile", device)
    both = choose("quantise_both", "triton", "fp8_block", device)
    wgrad = choose("grouped_wgrad", "torch", "bf16", device)

    def multiply(rows: Tensor, weights: Any, ends: Tensor) -> Tensor:
        return matmul(quantise(rows, "fp8_tile"), weights, ends)

    return Kit(multiply, lambda w: both(w, "fp8_block"), wgrad)


def forward_and_backward(
    kit: Kit, weights: list[tuple[Any, Any]], x_nd: Tensor, gates_nk: Tensor, placement: Placement, grad_nd: Tensor
) -> dict[str, Tensor]:
    device = x_nd.device
    permute, unpermute, gate_gradients = (
        choose(name, "triton", "bf16", device) for name in ("permute", "unpermute", "gate_gradients")
    )
    (gate, gate_t), (up, up_t), (down, down_t) = weights
    ends = placement.ends_e
    x = permute(x_nd, placement)
    g, u = kit.matmul(x, gate, ends), kit.matmul(x, up, ends)
    s = F.silu(g)
    h = s * u
    y = kit.matmul(h, down, ends)
    out = unpermute(y, placement, gates_nk)

    dy = permute(grad_nd, placement, gates_nk)
    dh = kit.matmul(dy, down_t, ends)
    dg, du = torch.ops.aten.silu_backward(dh * u, g), dh * s
    dx = unpermute(kit.matmul(dg, gate_t, ends) + kit.matmul(du, up_t, ends), placement)
    return {
        "out": out,
        "x": dx,
        "gates": gate_gradients(grad_nd, y, placement),
        "gate": kit.wgrad(dg.mT, x.mT, ends),
        "up": kit.wgrad(du.mT, x.mT, ends),
        "down": kit.wgrad(dy.mT, h.mT, ends),
    }
