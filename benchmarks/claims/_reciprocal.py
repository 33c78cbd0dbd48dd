"""How NVFP4's codes change if the quantiser multiplies by reciprocals instead of dividing, on a trained network.

Tensors are quantised as in training: an expert's gate and up share an outer scale (`Numerics.codes`), and activations
have one per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from etude.journal import RunPaths

if TYPE_CHECKING:
    from torch import Tensor

    from etude.model.block import Experts
    from etude.model.drift import Routed
    from etude.model.precision import NVFP4

BITS = (24, 22, 16, 12, 10, 8)
"""Precisions of the reciprocals, in bits. 24 is exact rounding and 22 what fast division on GPUs guarantees. The lower
ones show changes beyond exact ties, of which bf16 has many and any of which may round the other way."""
KINDS = ("weights_codes", "weights_scales", "activations_codes", "activations_scales")
_SEQUENCES = 8


def changed(paths: RunPaths) -> dict[str, dict[str, float]]:
    """Share of codes and of scales that differ between reciprocals and division, by kind (`KINDS`) and bits.

    Measured on the experts of the SFT model: their weights, and their activations on held-out demonstrations."""
    import torch

    from etude.lineage.numerics import held_out_sequences
    from etude.lineage.state import dtype_of, finished_stage
    from etude.model import Numerics, load_hf
    from etude.model.block import MixtureOfExperts
    from etude.model.drift import record_pass
    from etude.model.precision import quantise_nvfp4
    from etude.training.compute import DTYPES

    found = finished_stage(paths.root, "sft")
    model = load_hf(found.model, DTYPES[dtype_of(found.paths)])
    tokens = held_out_sequences(found, model.config.max_position_embeddings, _SEQUENCES)
    experts = {
        layer: block.mlp.experts for layer, block in enumerate(model.layers) if isinstance(block.mlp, MixtureOfExperts)
    }
    with torch.no_grad():
        passes = [record_pass(model, one) for one in tokens]
        operands = [x for one in passes for layer, said in one.routed.items() for x in _inputs(experts[layer], said)]

    def codes_of(bits: int | None) -> dict[str, list[NVFP4]]:
        numerics = Numerics("nvfp4", reciprocal_bits=bits)
        kin = [weights for e in experts.values() for weights in ((e.gate_proj, e.up_proj), (e.down_proj,))]
        return {
            "weights": [q for weights in kin for q in numerics.codes(weights)],
            "activations": [quantise_nvfp4(x, reciprocal_bits=bits) for x in operands],
        }

    exact = codes_of(None)
    shares: dict[str, dict[str, float]] = {}
    for bits in BITS:
        for what, rough in codes_of(bits).items():
            pairs = list(zip(exact[what], rough, strict=True))
            # Two codes to a byte.
            halves = [(a.codes >> shift & 15, b.codes >> shift & 15) for a, b in pairs for shift in (0, 4)]
            shares.setdefault(f"{what}_codes", {})[str(bits)] = _differing(halves)
            scales = ((a.scales.view(torch.uint8), b.scales.view(torch.uint8)) for a, b in pairs)
            shares.setdefault(f"{what}_scales", {})[str(bits)] = _differing(scales)
    return shares


def _inputs(experts: Experts, said: Routed) -> Iterator[Tensor]:
    """Yield the inputs of the two matmuls of a layer's experts."""
    import torch.nn.functional as F

    yield said.x_nd
    for expert, (gate, up) in enumerate(zip(experts.gate_proj, experts.up_proj, strict=True)):
        rows = said.x_nd[(said.routing.experts_nk == expert).any(-1)]
        yield F.silu(rows @ gate.T) * (rows @ up.T)


def _differing(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    counted = [(int(a.ne(b).sum()), a.numel()) for a, b in pairs]
    return sum(other for other, _ in counted) / sum(total for _, total in counted)
