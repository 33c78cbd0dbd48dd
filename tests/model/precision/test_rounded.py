"""Rounded matmuls against a slow reference: dequantised operands, multiplied in fp64, rounded once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.model import Numerics, expert_matmul
from etude.model.precision import (
    MXFP8,
    NVFP4,
    BlockFP8,
    Quantised,
    dequantise,
    outer_scale,
    quantise_block_fp8,
    quantise_mxfp8,
    quantise_nvfp4,
)
from etude.model.precision import rounded as rounded_module
from etude.model.precision.rounded import rounded_linear, rounded_matmul

ROUNDINGS = ["nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block", "bf16"]
PER_ROW = ["nvfp4", "mxfp8", "fp8_block", "bf16"]
LOADS = [(96, 0, 32, 128), (128, 128, 128, 128), (32,)]
LARGEST_ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}

seeds = st.integers(0, 2**31)


def exact(q: Quantised) -> Tensor:
    """What codes and scales stand for, in fp64, where none of it is rounded."""
    match q:
        case NVFP4():
            inside = dequantise(replace(q, outer=torch.ones_like(q.outer)), torch.float32)
            return inside.double() * q.outer.double()
        case BlockFP8():
            down, across = q.scales.repeat_interleave(q.rows, -2), q.codes.shape
            return q.codes.double() * down.repeat_interleave(128, -1)[..., : across[-2], : across[-1]].double()
        case MXFP8():
            return dequantise(q, torch.float32).double()
    raise AssertionError(q)


def activations(rounding: str, x: Tensor) -> Tensor:
    match rounding:
        case "nvfp4":
            return exact(quantise_nvfp4(x))
        case "nvfp4_tensor":
            return exact(quantise_nvfp4(x, per="tensor"))
        case "mxfp8":
            return exact(quantise_mxfp8(x))
        case "bf16":
            return x.bfloat16().double()
    return exact(quantise_block_fp8(x, rows=1))


def weight(rounding: str, w: Tensor, absmax: Tensor) -> Tensor:
    """One expert's [M, K]; `absmax` is that of all that are multiplied with the same input."""
    if rounding == "bf16":
        return w.bfloat16().double()
    if rounding.startswith("nvfp4"):
        return exact(quantise_nvfp4(w, outer=outer_scale(absmax.float())))
    return exact(quantise_mxfp8(w) if rounding == "mxfp8" else quantise_block_fp8(w))


def backwards(rounding: str, x: Tensor) -> Tensor:
    if rounding == "bf16":
        return x.bfloat16().double()
    return exact(quantise_block_fp8(x, rows=1) if rounding == "fp8_block" else quantise_mxfp8(x))


def reference(rounding: str, x: Tensor, weights: list[Tensor], cuts: list[int], dy: Tensor) -> dict[str, list[Tensor]]:
    """y, dx and dW in fp64, each beside the same with all numbers positive: what an error is measured by."""
    x64, found = activations(rounding, x), dict[str, list[Tensor]]()
    for sign in (lambda t: t, torch.abs):
        ys, dxs, dws = [], [], []
        for expert, (begin, end) in enumerate(pairwise(cuts)):
            absmax = torch.stack([w[expert].abs().max() for w in weights]).max()
            forward = torch.cat([weight(rounding, w[expert], absmax) for w in weights])
            ys.append(sign(x64[begin:end]) @ sign(forward).T)
            parts, begin_width = [], 0
            for w in weights:
                part = dy[begin:end, begin_width : begin_width + w.shape[1]]
                turned = weight("fp8_block", w[expert], absmax) if rounding == "fp8_block" else None
                back = backwards(rounding, w[expert].T.contiguous()).T if turned is None else turned
                left = backwards(rounding, part.contiguous()) if end > begin else part.double()
                parts.append(sign(left) @ sign(back))
                begin_width += w.shape[1]
            dxs.append(sum(parts))
            if end > begin:
                left, right = backwards(rounding, dy[begin:end].T), backwards(rounding, x[begin:end].T)
                dws.append(sign(left) @ sign(right).T)
            else:
                dws.append(torch.zeros(dy.shape[1], x.shape[1], dtype=torch.float64))
        for name, value in (("y", torch.cat(ys)), ("dx", torch.cat(dxs)), ("dw", torch.stack(dws))):
            found.setdefault(name, []).append(value)
    return found


def random_case(loads: tuple[int, ...], dtype: torch.dtype, seed: int = 0, block: int = 32) -> tuple:
    g = torch.Generator().manual_seed(seed)
    cuts = [0, *torch.tensor([-(-load // block) * block for load in loads]).cumsum(0).tolist()]
    x = torch.randn(cuts[-1], 64, generator=g) * torch.randn(cuts[-1], 1, generator=g).exp2()
    weights = [torch.randn(len(loads), m, 64, generator=g).to(dtype) for m in (32, 64)]
    dy = torch.randn(cuts[-1], 96, generator=g) * 2.0**-10
    return x.to(dtype), weights, cuts, dy.to(dtype)


def results(rounding: str, x: Tensor, weights: list[Tensor], cuts: list[int], dy: Tensor) -> dict[str, Tensor]:
    x, weights = x.clone().requires_grad_(), [w.clone().requires_grad_() for w in weights]
    y = rounded_matmul(x, weights, cuts, Numerics(rounding))
    y.backward(dy)
    grads = [w.grad for w in weights]
    assert x.grad is not None
    return {"y": y.detach(), "dx": x.grad, "dw": torch.cat([g for g in grads if g is not None], 1)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loads", LOADS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_product_and_gradients_are_the_references(rounding: str, loads: tuple[int, ...], dtype: torch.dtype) -> None:
    """Within what summing in fp32 may lose, and one rounding to the result's dtype."""
    case = random_case(loads, dtype, block=Numerics(rounding).block)
    got, expected = results(rounding, *case), reference(rounding, *case)
    for name, value in got.items():
        exactly, magnitude = expected[name]
        assert value.dtype == dtype
        lost = (value.double() - exactly).abs()
        allowed = (
            magnitude * 2.0**-24 * (case[0].shape[1] + case[0].shape[0] + 8) + exactly.abs() * (LARGEST_ROUNDING[dtype])
        )
        assert bool((lost <= allowed).all()), (name, float((lost / allowed.clamp_min(1e-30)).max()))


def grid(values: list[float], generator: torch.Generator, *shape: int) -> Tensor:
    table = torch.tensor([*values, *(-value for value in values)])
    return table[torch.randint(len(table), shape, generator=generator)]


def whole_case(rounding: str, seed: int) -> tuple[Tensor, list[Tensor], list[int], Tensor]:
    """Operands that the format holds as they are, and whose sums are exact in fp32."""
    g = torch.Generator().manual_seed(seed)
    cuts = [0, 32, 32, 128] if rounding != "fp8_block" else [0, 128, 128, 256]

    def made(*shape: int) -> Tensor:
        if rounding == "mxfp8":
            return grid([0, 1, 2, 3, 5, 7, 8, 15], g, *shape)
        if rounding == "fp8_block":
            x = grid([0, 16, 32, 48, 112, 240, 384], g, *shape)
            x[..., 0] = 448.0
            return x
        x = grid([0, 0.5, 1, 1.5, 2, 3, 4, 6], g, *shape).unflatten(-1, (-1, 16))
        x[..., 0] = 6.0
        blocks = grid([448, 224, 112], g, *x.shape[:-1], 1).abs()
        blocks[..., 0, :] = 448.0
        return (x * blocks).flatten(-2)

    return made(cuts[-1], 128), [made(3, 32, 128), made(3, 64, 128)], cuts, made(cuts[-1], 96)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@given(seed=seeds)
@settings(max_examples=10)
def test_where_nothing_is_lost_every_bit_is_right(rounding: str, dtype: torch.dtype, seed: int) -> None:
    """So scales are applied where they belong, and results are rounded once."""
    x, weights, cuts, _ = whole_case(rounding, seed)
    y = rounded_matmul(x.to(dtype), [w.to(dtype) for w in weights], cuts, Numerics(rounding))
    whole = torch.cat(weights, 1).double()
    expected = torch.cat([x[b:e].double() @ whole[expert].T for expert, (b, e) in enumerate(pairwise(cuts))])
    assert torch.equal(y, expected.float().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(seed=seeds)
@settings(max_examples=10)
def test_gradients_too(dtype: torch.dtype, seed: int) -> None:
    x, weights, cuts, dy = whole_case("mxfp8", seed)
    got = results("mxfp8", x.to(dtype), [w.to(dtype) for w in weights], cuts, dy.to(dtype))
    whole = torch.cat(weights, 1).double()
    parts = list(enumerate(pairwise(cuts)))
    dx = torch.cat([dy[b:e].double() @ whole[expert] for expert, (b, e) in parts])
    dw = torch.stack([dy[b:e].double().T @ x[b:e].double() for _, (b, e) in parts])
    assert torch.equal(got["dx"], dx.float().to(dtype))
    assert torch.equal(got["dw"], dw.float().to(dtype))


def test_division_by_a_rough_reciprocal_moves_results() -> None:
    x, weights, cuts, _ = random_case((512, 512), torch.float32, 0)
    ieee, rough = (rounded_matmul(x, weights, cuts, Numerics("nvfp4", reciprocal_bits=n)) for n in (None, 8))
    assert not torch.equal(ieee, rough)


def experts_case(tokens: int, dtype: torch.dtype, used: int = 4) -> list[Tensor]:
    g = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 64, generator=g)
    chosen = torch.rand(tokens, used, generator=g).topk(2, dim=-1).indices
    gates = torch.rand(tokens, 2, generator=g)
    weights = [torch.randn(4, *s, generator=g) * 0.2 for s in ((32, 64), (32, 64), (64, 32))]
    return [x.to(dtype), chosen, gates, *(w.to(dtype) for w in weights)]


def slow_experts(rounding: str, x: Tensor, chosen: Tensor, gates: Tensor, gate: Tensor, up: Tensor, down: Tensor):
    """Pair by pair. The scale of `nvfp4_tensor` is that of all pairs together, so the hidden ones are made first."""
    flat = chosen.flatten()
    rows = activations(rounding, x.repeat_interleave(chosen.shape[1], 0))

    def times(rows: Tensor, *weights: Tensor) -> list[Tensor]:
        absmax = [torch.stack([w[e].abs().max() for w in weights]).max() for e in range(len(gate))]
        rounded = [torch.stack([weight(rounding, w[e], absmax[e]) for e in range(len(gate))]) for w in weights]
        return [torch.einsum("nk,nmk->nm", rows, w[flat]).to(x.dtype) for w in rounded]

    first, second = times(rows, gate, up)
    (y,) = times(activations(rounding, F.silu(first) * second), down)
    return (y.view(*chosen.shape, -1).double() * gates.unsqueeze(-1)).sum(1)


@pytest.mark.parametrize("equal_pairs", [0, 4096])
@pytest.mark.parametrize(("tokens", "used"), [(50, 4), (3, 4), (33, 3)])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_experts_are_those_of_the_pairs_one_by_one(
    rounding: str, tokens: int, used: int, equal_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without gradients, however rows are filled up; no row of nobody reaches a scale."""
    monkeypatch.setattr(rounded_module, "EQUAL_MAX_PAIRS", equal_pairs)
    inputs = experts_case(tokens, torch.float32, used)
    expected = slow_experts(rounding, *inputs)
    trained = expert_matmul(*inputs, Numerics(rounding))
    with torch.no_grad():
        served = expert_matmul(*inputs, Numerics(rounding))
    for got in (trained, served):
        # A hidden number beside a tie may round to its other neighbour, which moves a result by little.
        assert float((got - expected).norm() / expected.norm()) < 1e-3
        assert float((got - expected).abs().median()) < 1e-6


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_gradients_of_experts_stay_near_those_in_fp32(rounding: str) -> None:
    """The direction of a step, that is: formats of four bits lose a few per cent."""

    def gradients(numerics: Numerics | None) -> list[Tensor]:
        leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in experts_case(200, torch.float32)]
        expert_matmul(*leaves, numerics).square().sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    for got, expected in zip(gradients(Numerics(rounding)), gradients(None), strict=True):
        assert float(F.cosine_similarity(got.flatten(), expected.flatten(), dim=0)) > 0.97
    again, once = (gradients(Numerics(rounding)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(again, once, strict=True)), "the same bits every time"


def test_no_tokens_at_all() -> None:
    x, chosen, gates, *weights = experts_case(4, torch.float32)
    assert expert_matmul(x[:0], chosen[:0], gates[:0], *weights, Numerics("nvfp4")).shape == (0, 64)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64)])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_linear_map_of_no_tokens(rounding: str, shape: tuple[int, ...]) -> None:
    x, w = torch.randn(shape).requires_grad_(), torch.randn(1, 32, 64).requires_grad_()
    y = rounded_linear(x, (w,), Numerics(rounding))
    assert y.shape == (*shape[:-1], 32)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape
    assert torch.equal(w.grad, torch.zeros_like(w))
    with torch.no_grad():
        assert rounded_linear(x, (w,), Numerics(rounding)).shape == (*shape[:-1], 32)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_linear_map_is_a_single_expert(rounding: str) -> None:
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(3, 7, 64, generator=g), torch.randn(32, 64, generator=g)
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    y = rounded_linear(leaves[0], (leaves[1].unsqueeze(0),), Numerics(rounding))
    dy = torch.randn(3, 7, 32, generator=g)
    y.backward(dy)
    filled = [F.pad(t.flatten(0, 1), (0, 0, 0, Numerics(rounding).block - 21)) for t in (x, dy)]
    expected = reference(rounding, filled[0], [w.unsqueeze(0)], [0, len(filled[0])], filled[1])
    torch.testing.assert_close(y.detach().flatten(0, 1), expected["y"][0][:21].float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(leaves[0].grad.flatten(0, 1), expected["dx"][0][:21].float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(leaves[1].grad, expected["dw"][0][0].float(), rtol=1e-4, atol=1e-4)
