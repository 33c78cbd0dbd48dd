"""Chooses what computes a recipe's routed experts, and the form in which kernels take their rows and weights.

Two ways need no kernels of ours: torch's own matmuls in the compute dtype (`model/experts.py`), and emulation, where
plain torch multiplies rounded operands (`numerics.py`). Every other way is a layer built from the kernels of one
implementation (`layer.py`).
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

Side: TypeAlias = Tensor | Quantised
"""One operand of a matmul."""
NATIVE = ("fp8_block",)
"""Rounded formats whose codes tensor cores multiply directly: kernels are used for them by default where available.
MXFP8's codes are first widened to bf16, so its kernels must be requested explicitly."""
_QUANTISERS = ("quantise", "quantise_both", "swiglu_quantise", "swiglu_quantise_both")


def who_computes(precision: PrecisionRecipe, device: torch.device | str, dtype: torch.dtype = torch.bfloat16) -> Choice:
    """Return the implementation [precision] names, or with "auto" the one that suits the device. Raises
    KernelUnavailable if it cannot run."""
    device, format = torch.device(device), precision.experts
    name = _derived(precision, device) if precision.kernels == "auto" else precision.kernels
    try:
        chosen = choose("grouped_mm", name, format, device)
    except KernelUnavailable as error:
        raise KernelUnavailable(f'precision.kernels = "{precision.kernels}": {error}') from error
    if precision.by_kernels and dtype != torch.bfloat16:
        told = str(dtype).removeprefix("torch.")
        raise KernelUnavailable(f'{chosen}: kernels take bfloat16, not {told}; set compute.dtype = "bfloat16"')
    return chosen


def kernels_for(precision: PrecisionRecipe, device: torch.device | str) -> ExpertKernels | None:
    """Return the kernels of a recipe; None if it uses none of ours."""
    chosen = who_computes(precision, device)
    return ExpertKernels.of(chosen.implementation, chosen.format, device) if precision.by_kernels else None


def _derived(precision: PrecisionRecipe, device: torch.device) -> str:
    if not precision.rounds:
        return "torch"
    if precision.emulate:
        return "reference"
    native = device.type == "cuda" and precision.experts in NATIVE
    if native and refusal("grouped_mm", "triton", precision.experts, device) is None:
        return "triton"
    raise KernelUnavailable(
        f'precision.experts = "{precision.experts}": there are no such matmuls on {device.type}; set '
        'precision.emulate = true to compute what they would give, or precision.experts = "bf16"'
    )


@dataclass(frozen=True, slots=True)
class ExpertKernels:
    """The kernels of one implementation for a layer in one format: bf16, mxfp8 or fp8_block.

    A matmul contracts the last axis of both operands. `rows` are operands of matmuls that contract the width; `columns`
    lie along tokens, for the gradients of weights.
    """

    format: str
    permute: Callable[..., Tensor]
    unpermute: Callable[..., Tensor]
    gate_gradients: Callable[..., Tensor]
    multiply: Callable[..., Tensor]
    weight_gradient: Callable[..., Tensor]
    quantisers: Mapping[str, Choice]
    """Quantisers of rows and columns; empty in bf16."""
    weight_quantisers: Mapping[str, Choice]

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
        """In training, an expert's rows are padded to a multiple of this: no block of columns spans two."""
        return {"bf16": 1, "mxfp8": mxfp8.BLOCK, "fp8_block": fp8.BLOCK}[self.format]

    def rows(self, x_rd: Tensor) -> Side:
        return x_rd if self.format == "bf16" else _quantised(self.quantisers["quantise"], x_rd)

    def rows_and_columns(self, x_rd: Tensor) -> tuple[Side, Side]:
        return (x_rd, x_rd.mT) if self.format == "bf16" else _both(self.quantisers["quantise_both"], x_rd)

    def swiglu(self, gate: Tensor, up: Tensor) -> Side:
        """Return the rows of silu(gate) * up."""
        if self.format == "bf16":
            return F.silu(gate) * up
        return _quantised(self.quantisers["swiglu_quantise"], gate, up)

    def swiglu_and_columns(self, gate: Tensor, up: Tensor) -> tuple[Side, Side]:
        if self.format == "bf16":
            return self.rows_and_columns(F.silu(gate) * up)
        return _both(self.quantisers["swiglu_quantise_both"], gate, up)

    def weight(self, weight: Side) -> Side:
        """Return the weight [E, M, K] as operand of x W^T, quantising it unless it is codes already."""
        plain = isinstance(weight, Tensor) and self.format != "bf16"
        return _quantised(self.weight_quantisers["quantise"], weight) if plain else weight

    def turned(self, weight: Tensor) -> Side:
        """Return the transposed weight [E, K, M], for dy W."""
        if self.format == "bf16":
            return weight.mT
        return _both(self.weight_quantisers["quantise_both"], weight)[1]


def _quantised(quantiser: Choice, *given: Side) -> Quantised:
    return cast(Quantised, quantiser(*given, quantiser.format))


def _both(quantiser: Choice, *given: Side) -> tuple[Quantised, Quantised]:
    return cast(tuple[Quantised, Quantised], quantiser(*given, quantiser.format))


def _tile(format: str) -> str:
    """Return the format of rows and columns that goes with weights in `format`."""
    return "fp8_tile" if format == "fp8_block" else format
