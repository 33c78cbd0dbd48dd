"""Chooses the implementation of a recipe's routed experts, and prepares rows and weights for its kernels.

Two implementations need no kernels of this package: torch's own matmuls in the compute dtype (`model/experts.py`), and
emulation, where plain torch multiplies rounded operands (`numerics.py`). Every other implementation is a layer built
from kernels (`layer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.errors import KernelUnavailable
from etude.model.precision import fp8, mxfp8
from etude.model.precision.formats import Quantised
from etude.model.precision.kernels.choice import Choice, choose, refusal

if TYPE_CHECKING:  # this package must run with torch alone
    from etude.recipe.precision import PrecisionRecipe

KernelOperand: TypeAlias = Tensor | Quantised
NATIVE = ("fp8_block",)
"""Formats whose codes tensor cores multiply directly: `kernels = "auto"` chooses kernels for these only. MXFP8 codes
are first widened to bf16, so its kernels must be requested by name."""
_QUANTISERS = ("quantise", "quantise_both", "swiglu_quantise", "swiglu_quantise_both")


def implementation_for(
    precision: PrecisionRecipe, device: torch.device | str, dtype: torch.dtype = torch.bfloat16
) -> Choice:
    """Return the implementation that the recipe's `[precision]` section names; "auto" is resolved for the device.
    Raises KernelUnavailable if it cannot run."""
    device, format = torch.device(device), precision.experts
    name = _default_implementation(precision, device) if precision.kernels == "auto" else precision.kernels
    try:
        chosen = choose("grouped_mm", name, format, device)
    except KernelUnavailable as error:
        raise KernelUnavailable(f'precision.kernels = "{precision.kernels}": {error}') from error
    if precision.by_kernels and dtype != torch.bfloat16:
        given = str(dtype).removeprefix("torch.")
        raise KernelUnavailable(f'{chosen}: kernels take bfloat16, not {given}; set compute.dtype = "bfloat16"')
    return chosen


def kernels_for(precision: PrecisionRecipe, device: torch.device | str) -> ExpertKernels | None:
    """Return the kernels that compute a recipe's experts; None if plain torch or emulation computes them."""
    chosen = implementation_for(precision, device)
    return ExpertKernels.of(chosen.implementation, chosen.format, device) if precision.by_kernels else None


def _default_implementation(precision: PrecisionRecipe, device: torch.device) -> str:
    if not precision.rounds:
        return "torch"
    if precision.emulate:
        return "reference"
    native = device.type == "cuda" and precision.experts in NATIVE
    if native and refusal("grouped_mm", "triton", precision.experts, device) is None:
        return "triton"
    raise KernelUnavailable(
        f'precision.experts = "{precision.experts}": no implementation multiplies this format on {device.type}; set '
        'precision.emulate = true to emulate it, or precision.experts = "bf16"'
    )


@dataclass(frozen=True, slots=True)
class ExpertKernels:
    """The kernels of one implementation for a layer of experts in one format: bf16, mxfp8 or fp8_block.

    A matmul contracts the last axis of both operands. "Rows" are operands quantised along the width, for matmuls that
    contract the width. "Columns" are their transposes, quantised along the tokens, for weight gradients. In bf16
    nothing is quantised.
    """

    format: str
    permute: Callable[..., Tensor]
    unpermute: Callable[..., Tensor]
    gate_gradients: Callable[..., Tensor]
    multiply: Callable[..., Tensor]
    weight_gradient: Callable[..., Tensor]
    quantisers: Mapping[str, Choice]
    """Quantisers of activations and gradients by operation; empty in bf16."""
    weight_quantisers: Mapping[str, Choice]
    """Quantisers of weights: "quantise", and "quantise_both" for a weight and its transpose; empty in bf16."""

    @classmethod
    def of(cls, implementation: str, format: str, device: torch.device | str) -> ExpertKernels:
        tile = _tile(format)
        moves = ("permute", "unpermute", "gate_gradients")
        permute, unpermute, gate_gradients = (choose(name, implementation, "bf16", device) for name in moves)
        matmul = choose("grouped_mm", implementation, format, device)
        wgrad = choose("grouped_wgrad", implementation, tile, device)
        rounded = format != "bf16"
        quantisers = {name: choose(name, implementation, tile, device) for name in _QUANTISERS if rounded}
        of_weights = {name: choose(name, implementation, format, device) for name in _QUANTISERS[:2] if rounded}
        return cls(format, permute, unpermute, gate_gradients, matmul, wgrad, quantisers, of_weights)

    @property
    def block(self) -> int:
        """Tokens per block of operands quantised along the tokens. In training, each expert's rows are padded to a
        multiple of it, so that no block spans two experts."""
        return {"bf16": 1, "mxfp8": mxfp8.BLOCK, "fp8_block": fp8.BLOCK}[self.format]

    def rows(self, x_rd: Tensor) -> KernelOperand:
        """Return x quantised along its width."""
        return x_rd if self.format == "bf16" else _quantised(self.quantisers["quantise"], x_rd)

    def rows_and_columns(self, x_rd: Tensor) -> tuple[KernelOperand, KernelOperand]:
        """Return x quantised along its width, and its transpose quantised along the tokens."""
        return (x_rd, x_rd.mT) if self.format == "bf16" else _both(self.quantisers["quantise_both"], x_rd)

    def swiglu(self, gate: Tensor, up: Tensor) -> KernelOperand:
        """Return silu(gate) * up, quantised along its width."""
        if self.format == "bf16":
            return F.silu(gate) * up
        return _quantised(self.quantisers["swiglu_quantise"], gate, up)

    def swiglu_and_columns(self, gate: Tensor, up: Tensor) -> tuple[KernelOperand, KernelOperand]:
        if self.format == "bf16":
            return self.rows_and_columns(F.silu(gate) * up)
        return _both(self.quantisers["swiglu_quantise_both"], gate, up)

    def weight(self, weight: KernelOperand) -> KernelOperand:
        """Return the weight [E, M, K] as operand of x W^T, quantised unless it already is codes and scales."""
        plain = isinstance(weight, Tensor) and self.format != "bf16"
        return _quantised(self.weight_quantisers["quantise"], weight) if plain else weight

    def transposed(self, weight: Tensor) -> KernelOperand:
        """Return the transposed weight [E, K, M], quantised, as operand of dy W."""
        if self.format == "bf16":
            return weight.mT
        return _both(self.weight_quantisers["quantise_both"], weight)[1]


def _quantised(quantiser: Choice, *given: KernelOperand) -> Quantised:
    return cast(Quantised, quantiser(*given, quantiser.format))


def _both(quantiser: Choice, *given: KernelOperand) -> tuple[Quantised, Quantised]:
    return cast(tuple[Quantised, Quantised], quantiser(*given, quantiser.format))


def _tile(format: str) -> str:
    """Return the activations' format for weights in `format`: the same, except that block FP8 uses 1 x 128 blocks."""
    return "fp8_tile" if format == "fp8_block" else format
