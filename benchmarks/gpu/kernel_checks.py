"""Checks of the Triton kernels against the CPU references: quantisers, permutation and exact matmuls bit for bit.

With TRITON_INTERPRET=1 the same checks run without a GPU, on fewer numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor

from etude.model import expert_matmul
from etude.model.experts import experts_reference
from etude.model.placing import Placement, place_pairs
from etude.model.precision import FORMATS, Quantised
from etude.model.precision.kernels import IMPLEMENTATIONS, ExpertKernels, choose, reference

TILED = IMPLEMENTATIONS["triton"].formats["quantise_both"]
PAIRS = {"fp8_row": ("fp8_row", "fp8_row"), "fp8_block": ("fp8_tile", "fp8_block"), "mxfp8": ("mxfp8", "mxfp8")}
LAYERS = {"bf16": 0.01, "mxfp8": 0.12, "fp8_block": 0.12}
"""Formats of a whole layer, and the largest relative difference in norm from fp32 for each."""


def adversarial(device: str) -> Tensor:
    """A hard input for quantisers: magnitudes vary widely by row and by block of 16; every bf16 value, zeros,
    infinities and NaN occur."""
    rows = 32 if device == "cpu" else 1024
    g = torch.Generator().manual_seed(0)
    size = (torch.randn(rows, 1, generator=g) * 8 + torch.randn(rows, 256, generator=g) * 2).exp2()
    x = torch.randn(rows, 4096, generator=g) * size.repeat_interleave(16, -1)
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x[:16] = patterns.view(torch.bfloat16).view(16, 4096).float()
    x[16:18] = 0
    x[18, 3], x[19, 500], x[20, :2] = torch.nan, torch.inf, torch.tensor([torch.nan, -torch.inf])
    return x


def moved(q: Quantised, device: str) -> Quantised:
    """Copy to a device."""
    given = {field.name: getattr(q, field.name) for field in fields(q)}
    return type(q)(**{name: value.to(device) if isinstance(value, Tensor) else value for name, value in given.items()})


def unequal(found: Quantised, wanted: Quantised) -> int:
    """Number of bytes of codes and scales that differ."""
    count = 0
    for field in fields(wanted):
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(b, Tensor):
            assert a.shape == b.shape, field.name
            a, b = (part.cpu().contiguous().flatten().view(torch.uint8) for part in (a, b))
            count += int((a != b).sum())
    return count


def quantisers_are_bit_equal(device: str) -> str:
    bad = {}
    for dtype in (torch.bfloat16, torch.float32):
        x = adversarial(device).to(dtype)
        for name in FORMATS:
            found = choose("quantise", "triton", name, device)(x.to(device), name)
            if count := unequal(found, reference.quantise(x, name)):
                bad[f"{name} {dtype}"] = count
        for name in TILED:
            for found, wanted in zip(
                choose("quantise_both", "triton", name, device)(x.to(device), name),
                reference.quantise_both(x, name),
                strict=True,
            ):
                if count := unequal(found, wanted):
                    bad[f"{name} {dtype} both"] = bad.get(f"{name} {dtype} both", 0) + count
    assert not bad, f"bytes that differ: {bad}"
    return f"{len(FORMATS)} formats, {len(TILED)} of them with columns, bf16 and fp32"


def swiglu_and_quantise(device: str) -> str:
    g = torch.Generator().manual_seed(1)
    gate, up = (torch.randn(32, 4096, generator=g).mul(3).bfloat16() for _ in range(2))
    worst = 0.0
    for name in IMPLEMENTATIONS["triton"].formats["swiglu_quantise"]:
        found = choose("swiglu_quantise", "triton", name, device)(gate.to(device), up.to(device), name)
        wanted = reference.swiglu_quantise(gate, up, name)
        worst = max(worst, unequal(found, wanted) / wanted.codes.numel())
    # Devices differ in the last bit of the exponential.
    assert worst < 1e-3, worst
    return f"at most {worst:.1e} of the bytes differ"


def permutation_is_bit_equal(device: str) -> str:
    x, gates, placement = drawn_placement(device)
    there = Placement(*(getattr(placement, field.name).to(device) for field in fields(placement)))
    rows = choose("permute", "triton", "bf16", device)(x.to(device), there, gates.to(device))
    assert torch.equal(rows.cpu(), reference.permute(x, placement, gates))
    back = choose("unpermute", "triton", "bf16", device)(rows, there, gates.to(device))
    assert torch.equal(back.cpu(), reference.unpermute(rows.cpu(), placement, gates))
    found = choose("gate_gradients", "triton", "bf16", device)(x.to(device), rows, there).cpu()
    torch.testing.assert_close(found, reference.gate_gradients(x, rows.cpu(), placement), rtol=1e-4, atol=1e-4)
    return f"{gates.numel()} pairs, {placement.token_r.numel()} rows"


def drawn_placement(device: str) -> tuple[Tensor, Tensor, Placement]:
    tokens = 16 if device == "cpu" else 1000
    g = torch.Generator().manual_seed(2)
    experts = torch.rand(tokens, 12, generator=g).topk(4).indices + (torch.arange(tokens) % 2)[:, None]
    x = torch.randn(tokens, 1030, generator=g).bfloat16()
    return x, torch.rand(tokens, 4, generator=g), place_pairs(experts, 16, multiple=8)


def integers(seed: int, *shape: int) -> Tensor:
    """Small integers, whose sums are exact in any order. The largest of every 128 is 7, so scales are powers of two."""
    x = torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(seed)).float()
    x[..., ::128] = 7
    return x


def loads(device: str) -> Tensor:
    """End row of each expert's uneven load."""
    load = [5, 0, 17, 1, 0, 33] if device == "cpu" else [300, 0, 17, 1, 1000, 128, 0, 77]
    return torch.tensor(load).cumsum(0).int()


def exact_matmul(kind: str) -> Callable[[str], str]:
    def check(device: str) -> str:
        ends = loads(device)
        wide, deep = (24, 256) if device == "cpu" else (384, 1024)
        a, b = integers(3, int(ends[-1]), deep), integers(4, len(ends), wide, deep)
        if kind == "bf16":
            a, b = a.bfloat16(), b.bfloat16()
            there = a.to(device), b.to(device)
        else:
            left, right = PAIRS[kind]
            a, b = FORMATS[left].quantise(a), FORMATS[right].quantise(b)
            there = moved(a, device), moved(b, device)
        found = choose("grouped_mm", "triton", kind, device)(*there, ends.to(device)).cpu()
        assert torch.equal(found, reference.grouped_mm(a, b, ends)), "sums of integers differ"
        return f"{len(ends)} experts, {int(ends[-1])} rows, {wide} x {deep}"

    check.__name__ = f"grouped_mm_of_{kind}_is_exact"
    return check


def gradients_of_bf16_are_exact(device: str) -> str:
    ends = loads(device)
    wide, deep = (40, 64) if device == "cpu" else (768, 512)
    grads, x = integers(5, int(ends[-1]), deep).bfloat16(), integers(6, int(ends[-1]), wide).bfloat16()
    weights = integers(7, len(ends), deep, wide).bfloat16()
    there = ends.to(device)
    found = choose("grouped_mm", "triton", "bf16", device)(grads.to(device), weights.to(device).mT, there)
    assert torch.equal(found.cpu(), reference.grouped_mm(grads, weights.mT, ends)), "dgrad differs"
    found = choose("grouped_wgrad", "triton", "bf16", device)(grads.to(device).mT, x.to(device).mT, there)
    assert torch.equal(found.cpu(), reference.grouped_wgrad(grads.mT, x.mT, ends)), "wgrad differs"
    return "dgrad and wgrad"


def weight_gradients_of_codes_are_exact(device: str) -> str:
    """Weight gradients from columns quantised along tokens; each expert has whole blocks of rows."""
    ends = (loads(device) + 127) // 128 * 128 if device != "cpu" else torch.tensor([128, 128, 256]).int()
    high, wide = (24, 40) if device == "cpu" else (768, 512)
    for kind in ("fp8_tile", "mxfp8"):
        a, b = (FORMATS[kind].quantise(integers(seed, size, int(ends[-1]))) for seed, size in ((9, high), (10, wide)))
        found = choose("grouped_wgrad", "triton", kind, device)(moved(a, device), moved(b, device), ends.to(device))
        assert torch.equal(found.cpu(), reference.grouped_wgrad(a, b, ends)), f"{kind}: sums of integers differ"
    return f"{len(ends)} experts, {int(ends[-1])} rows, {high} x {wide}"


def a_layer_has_the_gradients_of_autograd(device: str) -> str:
    """A layer of kernels against autograd through the plain fp32 layer; they differ by the format's rounding."""
    tokens, hidden, inner, experts = 5, 128, 64, 3
    g = torch.Generator().manual_seed(8)
    x, grad = (torch.randn(tokens, hidden, generator=g).bfloat16() for _ in range(2))
    shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
    weights = [(torch.randn(experts, n, k, generator=g) / k**0.5).bfloat16() for n, k in shapes]
    gates, picked = torch.rand(tokens, 2, generator=g), torch.rand(tokens, experts, generator=g).topk(2).indices
    leaves = [part.float().requires_grad_() for part in (x, gates, *weights)]
    out = experts_reference(leaves[0], picked, *leaves[1:])
    out.backward(grad.float())
    wanted = dict(zip(PARTS, (out.detach(), *(leaf.grad for leaf in leaves)), strict=True))
    worst = {}
    for format, bound in LAYERS.items():
        kernels = ExpertKernels.of("triton", format, device)
        inputs = (part.to(device) for part in (x, picked, gates, *weights))
        found = forward_and_backward(kernels, *inputs, grad.to(device))
        off = {key: float((found[key].cpu().float() - wanted[key]).norm() / wanted[key].norm()) for key in wanted}
        assert max(off.values()) < bound, f"{format}: {off}"
        worst[format] = round(max(off.values()), 4)
    return f"largest differences in norm {worst}"


PARTS = ("out", "x", "gates", "gate", "up", "down")


def forward_and_backward(
    kernels: ExpertKernels | None, x: Tensor, picked: Tensor, gates: Tensor, *weights_and_grad: Tensor
) -> dict[str, Tensor]:
    """Output and gradients (PARTS) of a layer as the model runs it."""
    *weights, grad = weights_and_grad
    leaves = [part.detach().requires_grad_() for part in (x, gates, *weights)]
    out = expert_matmul(leaves[0], picked, *leaves[1:], kernels=kernels)
    found = torch.autograd.grad(out, leaves, grad)
    return dict(zip(PARTS, (out.detach(), *found), strict=True))


KERNEL_CHECKS: tuple[Callable[[str], str], ...] = (
    quantisers_are_bit_equal,
    swiglu_and_quantise,
    permutation_is_bit_equal,
    *(exact_matmul(kind) for kind in ("bf16", *PAIRS)),
    gradients_of_bf16_are_exact,
    weight_gradients_of_codes_are_exact,
    a_layer_has_the_gradients_of_autograd,
)
