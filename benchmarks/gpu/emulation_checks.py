"""Checks of emulated low precision on a GPU against the CPU. Emulation runs NVFP4 and MXFP8 on tensor cores without
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import torch
from checks import extended, pair, tokens
from kernel_checks import PARTS, adversarial, unequal
from torch import Tensor

from etude.model import Numerics, expert_matmul, round_with, serve
from etude.model.precision import FORMATS, dequantise
from etude.model.precision.numerics import Rounding

ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)
NEAR = 5e-3
"""Largest relative difference in norm. Summing in another order sometimes moves a number across a rounding tie before
it is quantised."""
OFTEN = 1e-3
"""Bound on the 95th percentile of log-prob differences between trainer and engine, which come from other sums and the
ties they cross. One scale for all tokens would give ten times as much."""


def references_are_bit_equal(device: str) -> str:
    bad = {}
    for dtype in (torch.bfloat16, torch.float32):
        x = adversarial(device).to(dtype)
        for name, format in FORMATS.items():
            wanted = format.quantise(x)
            found = format.quantise(x.to(device))
            here, there = ((dequantise(q, dtype), format.fake(y)) for q, y in ((wanted, x), (found, x.to(device))))
            # NaN is equal to itself here, and a zero may have either sign.
            pairs = zip(here, there, strict=True)
            others = sum(int((~torch.isclose(a, b.cpu(), 0, 0, equal_nan=True)).sum()) for a, b in pairs)
            if count := unequal(found, wanted) + others:
                bad[f"{name} {dtype}"] = count
    assert not bad, f"numbers that differ, by format and dtype: {bad}"
    return f"{len(FORMATS)} formats, bf16 and fp32, there and back"


def emulated_experts_equal_cpu(device: str) -> str:
    g = torch.Generator().manual_seed(11)
    count, hidden, inner, experts = 60, 128, 64, 6
    x, grad = (torch.randn(count, hidden, generator=g) for _ in range(2))
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    weights = [torch.randn(experts, n, k, generator=g) / k**0.5 for n, k in shapes]
    gates, picked = torch.rand(count, 2, generator=g), torch.rand(count, experts, generator=g).topk(2).indices
    worst = {}
    for rounding in ROUNDINGS:
        here, there = (_emulated(rounding, where, x, picked, gates, weights, grad) for where in ("cpu", device))
        off = {key: float((there[key] - here[key]).norm() / here[key].norm()) for key in PARTS}
        assert max(off.values()) < NEAR, f"{rounding}: {off}"
        worst[rounding] = float(f"{max(off.values()):.1e}")
    return f"largest differences in norm {worst}"


def _emulated(
    rounding: Rounding, where: str, x: Tensor, picked: Tensor, gates: Tensor, weights: list[Tensor], grad: Tensor
) -> dict[str, Tensor]:
    leaves = [part.detach().to(where).requires_grad_() for part in (x, gates, *weights)]
    out = expert_matmul(leaves[0], picked.to(where), *leaves[1:], numerics=Numerics(rounding))
    found = torch.autograd.grad(out, leaves, grad.to(where))
    return {key: part.detach().cpu() for key, part in zip(PARTS, (out, *found), strict=True)}


def served_codes_give_the_trainers_logits(device: str) -> str:
    worst = {}
    for rounding in ROUNDINGS:
        if rounding == "nvfp4_tensor":
            continue  # one scale for the whole batch makes log-probs depend on it, so they cannot agree
        _, model = pair(device)
        asked = tokens(3, 40).to(device)
        round_with(model, Numerics(rounding))
        with torch.no_grad():
            whole = model(asked).logits_btv.log_softmax(-1)
            serve(model)
            apart = (extended(model, asked).log_softmax(-1) - whole).abs().flatten()
        often = float(apart.quantile(0.95))
        assert often < OFTEN, f"{rounding}: {often}"
        worst[rounding] = float(f"{often:.1e}")
    return f"of 95 in 100 at most {worst}"


EMULATION_CHECKS: tuple[Callable[[str], str], ...] = (
    references_are_bit_equal,
    emulated_experts_equal_cpu,
    served_codes_give_the_trainers_logits,
)
