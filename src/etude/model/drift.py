"""Measures how far a number format moves a network from fp32, layer by layer, on given sequences.

Two errors are measured per layer. `experts` is the error of the layer's experts when they get the inputs of the fp32
network, so it excludes errors of earlier layers. `residual` is the error of the residual stream after the layer, so it
includes errors of earlier layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from etude.model.block import Block, Experts, MixtureOfExperts
from etude.model.precision.formats import dequantise
from etude.model.precision.weight_checks import Fault
from etude.model.router import Routing
from etude.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Magnitudes:
    mean: float
    p99: float
    """The 99th percentile: the smallest value that is at least as large as 99% of the values."""
    max: float

    @classmethod
    def of(cls, values: Tensor) -> Self:
        flat = values.detach().flatten().double()
        rank = -(-99 * flat.numel() // 100)
        return cls(float(flat.mean()), float(flat.kthvalue(rank).values), float(flat.max()))

    @classmethod
    def of_all(cls, parts: Iterable[Tensor]) -> Self:
        return cls.of(torch.cat([part.flatten() for part in parts]))


@dataclass(frozen=True, slots=True)
class LayerDrift:
    """Errors of one layer against fp32. All fields but `residual` are None in a layer without experts."""

    layer: int
    residual: Magnitudes
    """Relative error of each token's residual stream after the layer."""
    experts: Magnitudes | None = None
    """Relative error of the experts' output for each token, given the inputs and expert choices of the fp32 network."""
    weights: Magnitudes | None = None
    """Relative error of each row of the experts' weights, as rounded for their matmuls."""
    flips: float | None = None
    """Share of the expert choices that differ from those of the fp32 network."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Recorded inputs and outputs of one layer's routed experts in one forward pass."""

    x_nd: Tensor
    routing: Routing
    y_nd: Tensor


@dataclass(frozen=True, slots=True)
class Pass:
    """Intermediate results and logits of one sequence's forward pass, detached from the autograd graph."""

    logits_tv: Tensor
    experts_tlk: Tensor
    residual_l: list[Tensor]
    """The residual stream after each layer, [T, d]."""
    routed: dict[int, Routed]


@torch.enable_grad()
def record_pass(model: Transformer, tokens_t: Tensor) -> Pass:
    """Run one sequence and record the pass. Gradients are enabled, so that the matmuls are the same as in training."""
    residual: list[Tensor] = []
    routed: dict[int, Routed] = {}

    def keep_residual(module: nn.Module, args: Any, out: Any) -> None:
        residual.append(out[0].squeeze(0).detach())

    def keep_routed(layer: int, module: nn.Module, args: Any, out: Any) -> None:
        x_nd, routing = args
        routing = Routing(routing.experts_nk, routing.gates_nk.detach())
        routed[layer] = Routed(x_nd.detach(), routing, out.detach())

    with ExitStack() as hooks:
        for layer, block in enumerate(_blocks(model)):
            hooks.enter_context(block.register_forward_hook(keep_residual))
            if isinstance(block.mlp, MixtureOfExperts):
                hooks.enter_context(block.mlp.experts.register_forward_hook(partial(keep_routed, layer)))
        output = model(tokens_t[None])
    return Pass(output.logits_btv[0].detach(), output.experts_btlk[0], residual, routed)


@torch.no_grad()
def layer_drift(
    model: Transformer, passes: Sequence[Pass], exact_model: Transformer, exact: Sequence[Pass]
) -> list[LayerDrift]:
    """Return the errors of each layer of `model`, whose recorded passes are `passes`, against `exact_model`, whose
    passes are `exact`.

    Both networks must hold the same weights and have run the same sequences; `exact_model` computes in fp32.
    """
    found = []
    pairs = list(zip(passes, exact, strict=True))
    for layer, (block, exact_block) in enumerate(zip(_blocks(model), _blocks(exact_model), strict=True)):
        residual = Magnitudes.of_all(relative_error(a.residual_l[layer], b.residual_l[layer]) for a, b in pairs)
        if not isinstance(block.mlp, MixtureOfExperts):
            found.append(LayerDrift(layer, residual))
            continue
        ours, theirs = cast(Experts, block.mlp.experts), cast(Experts, cast(MixtureOfExperts, exact_block.mlp).experts)
        picks = ((a.routed[layer].routing.experts_nk, b.routed[layer].routing.experts_nk) for a, b in pairs)
        found.append(
            LayerDrift(
                layer,
                residual,
                experts=Magnitudes.of_all(_own_error(ours, b.routed[layer]) for b in exact),
                weights=Magnitudes.of_all(map(relative_error, _values(ours), _values(theirs))),
                flips=float(torch.cat([flips(a_nk, b_nk) for a_nk, b_nk in picks]).mean()),
            )
        )
    return found


def activation_faults(passes: Sequence[Pass]) -> list[Fault]:
    """Return a `Fault` for each recorded result that is not finite in some pass, in the order of computation."""
    found: dict[str, Fault] = {}
    for one in passes:
        for where, x in _computed(one):
            if where not in found and (count := int((~x.isfinite()).sum())):
                found[where] = Fault(where, f"has {count} of {x.numel()} numbers that are not finite")
    return list(found.values())


def _computed(one: Pass) -> Iterator[tuple[str, Tensor]]:
    for layer, residual_td in enumerate(one.residual_l):
        if routed := one.routed.get(layer):
            yield f"the input of layer {layer}'s experts", routed.x_nd
            yield f"the sum of layer {layer}'s experts", routed.y_nd
        yield f"the output of layer {layer}", residual_td
    yield "the logits", one.logits_tv


def relative_error(found_td: Tensor, exact_td: Tensor) -> Tensor:
    """Return, for each row, the norm of the difference divided by the norm of the exact row."""
    found_td, exact_td = found_td.double(), exact_td.double()
    length = torch.linalg.vector_norm(exact_td, dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    error: Tensor = torch.linalg.vector_norm(found_td - exact_td, dim=-1) / length
    return error


def flips(one_nk: Tensor, other_nk: Tensor) -> Tensor:
    """Return for each token the share of its experts in `one_nk` that are not among its experts in `other_nk`."""
    return (one_nk.unsqueeze(-1) != other_nk.unsqueeze(-2)).all(-1).double().mean(-1)


@torch.enable_grad()
def _own_error(experts: Experts, exact: Routed) -> Tensor:
    """Return each token's relative error when `experts` get the inputs and routing that the fp32 network recorded."""
    found: Tensor = experts(exact.x_nd.to(experts.gate_proj.dtype), exact.routing)
    return relative_error(found.detach(), exact.y_nd)


def _values(experts: Experts) -> list[Tensor]:
    """Return the experts' weights as their matmuls use them: rounded to the low-precision format and in fp32 or, if the
    experts have no `numerics`, unchanged."""
    groups = (experts.gate_proj, experts.up_proj), (experts.down_proj,)
    if experts.numerics is None:
        return [weight for group in groups for weight in group]
    return [dequantise(q, torch.float32) for group in groups for q in experts.numerics.codes(group)]


def _blocks(model: Transformer) -> list[Block]:
    return cast(list[Block], list(model.layers))
