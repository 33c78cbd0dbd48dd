"""Errors by layer: laws of the measures, and networks of which the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine.tiny import VOCAB, tiny_model

from etude.model import Numerics, Transformer, round_with
from etude.model.drift import Magnitudes, Pass, activation_faults, flips, layer_drift, record_pass, relative_error
from etude.model.precision import dequantise

WIDTH = {"moe_intermediate_size": 32}


def sequences(count: int = 3) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randint(0, VOCAB, (10 + 7 * n,), generator=made) for n in range(count)]


def rounded(name: str) -> tuple[Transformer, Numerics]:
    model, numerics = tiny_model(**WIDTH), Numerics(name)
    round_with(model, numerics)
    return model, numerics


def passes(model: Transformer) -> list[Pass]:
    return [record_pass(model, tokens) for tokens in sequences()]


@pytest.mark.parametrize("seed", range(3))
def test_flips_count_picks_whatever_their_order(seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    one, other = (torch.stack([torch.randperm(6, generator=made)[:3] for _ in range(7)]) for _ in range(2))
    expected = [len(set(a) - set(b)) / 3 for a, b in zip(one.tolist(), other.tolist(), strict=True)]
    assert flips(one, other).tolist() == pytest.approx(expected)
    assert torch.equal(flips(one.flip(-1), other), flips(one, other))
    assert not flips(one, one.flip(-1)).any()


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "fp8_block"])
def test_a_rounded_network_drifts_from_its_first_experts_on(name: str) -> None:
    exact = tiny_model(**WIDTH)
    model, numerics = rounded(name)
    dense, first, second = layer_drift(model, passes(model), exact, passes(exact))
    assert (dense.residual, dense.experts, dense.flips) == (Magnitudes(0, 0, 0), None, None)
    assert first.flips == 0, "what its router sees was not rounded yet"
    assert first.experts is not None
    assert second.experts is not None
    assert 0 < first.residual.mean < second.residual.mean
    least, most = (0.05, 0.4) if name == "nvfp4" else (0.01, 0.12)
    assert least < first.experts.mean < first.experts.p99 <= first.experts.max < 2 * most
    experts = exact.layers[1].mlp.experts
    (down,) = numerics.codes((experts.down_proj.detach(),))
    gate, up = numerics.codes((experts.gate_proj.detach(), experts.up_proj.detach()))
    rows = [
        relative_error(dequantise(q, torch.float32), weight.detach()).flatten()
        for q, weight in ((gate, experts.gate_proj), (up, experts.up_proj), (down, experts.down_proj))
    ]
    assert first.weights == Magnitudes.of(torch.cat(rows))


def test_errors_in_bf16_are_those_worked_out_by_hand() -> None:
    """Layer 1, token by token, pick by pick, in numpy; every product of a matmul is rounded to bf16 by hand."""
    exact, model = tiny_model(**WIDTH), tiny_model(**WIDTH).bfloat16()
    ours = [record_pass(model, tokens) for tokens in sequences()]
    theirs = passes(exact)
    found = layer_drift(model, ours, exact, theirs)[1]
    assert found.experts is not None
    assert found.weights is not None

    def half(x: np.ndarray) -> np.ndarray:
        return torch.from_numpy(np.ascontiguousarray(x)).bfloat16().double().numpy()

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    weights = [w.detach().double().numpy() for w in exact.layers[1].mlp.experts.parameters()]
    experts, residual, flipped = [], [], []
    for one, other in zip(ours, theirs, strict=True):
        routed = other.routed[1]
        rows = zip(routed.x_nd, routed.y_nd, routed.routing.experts_nk, routed.routing.gates_nk, strict=True)
        for token, (x, y, picks, gates) in enumerate(rows):
            out = np.zeros(len(y))
            for pick, share in zip(picks.tolist(), half(gates.numpy()), strict=True):
                gate, up, down = (half(w[pick]) for w in weights)
                h = half(half(silu(half(gate @ half(x.numpy())))) * half(up @ half(x.numpy())))
                out += share * half(down @ h)
            experts.append(np.linalg.norm(half(out) - y.numpy()) / np.linalg.norm(y))
            a, b = (side.residual_l[1][token].double().numpy() for side in (one, other))
            residual.append(np.linalg.norm(a - b) / np.linalg.norm(b))
            mine = set(one.routed[1].routing.experts_nk[token].tolist())
            flipped.append(len(mine - set(picks.tolist())) / len(mine))
    rounding = np.concatenate([np.linalg.norm(half(w) - w, axis=-1) / np.linalg.norm(w, axis=-1) for w in weights])
    assert found.experts.mean == pytest.approx(np.mean(experts), rel=0.02)
    assert found.experts.max == pytest.approx(np.max(experts), rel=0.1)
    assert found.residual.mean == pytest.approx(np.mean(residual))
    assert found.residual.p99 == pytest.approx(np.percentile(residual, 99, method="inverted_cdf"))
    assert found.weights.mean == pytest.approx(np.mean(rounding))
    assert found.weights.max == pytest.approx(np.max(rounding))
    assert found.flips == pytest.approx(np.mean(flipped))


def test_a_layer_alone_does_not_carry_what_came_before() -> None:
    """Two networks that differ in layer 0 only: experts after it err not at all, the stream does."""
    exact, model = tiny_model(**WIDTH), tiny_model(**WIDTH)
    with torch.no_grad():
        model.layers[0].mlp.down_proj.weight *= 1.1
    for drift in layer_drift(model, passes(model), exact, passes(exact))[1:]:
        assert drift.experts == Magnitudes(0, 0, 0)
        assert drift.residual.mean > 0.01


@torch.no_grad()
def test_what_is_not_finite_is_named_by_its_layer() -> None:
    model, _ = rounded("nvfp4")
    assert not activation_faults(passes(model))
    model.layers[2].mlp.experts.down_proj[:, 3] = float("inf")
    found = [fault.where for fault in activation_faults(passes(model))]
    assert "the sum of layer 2's experts" in found
    assert "the logits" in found
    assert not any("layer 1" in where for where in found)
