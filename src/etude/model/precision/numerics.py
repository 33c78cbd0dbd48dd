"""Which operands a recipe rounds, and to which format, in every matmul of the forward and backward pass.

Invariant: every operand is quantised in blocks along the axis that its matmul contracts. So
- the forward pass contracts the input width: x and W as they are;
- the gradient of x contracts the output width: dy as it is, W transposed;
- the gradient of W contracts tokens: dy and x transposed.

| recipe | forward x | forward W | backward, all operands |
|---|---|---|---|
| `nvfp4` | NVFP4 per token | NVFP4, one outer scale per expert | MXFP8 |
| `nvfp4_tensor` | NVFP4 per tensor | NVFP4, one outer scale per expert | MXFP8 |
| `mxfp8` | MXFP8 | MXFP8 | MXFP8 |
| `fp8_block` | FP8, 1 x 128 | FP8, 128 x 128 | FP8: W as in the forward pass, 1 x 128 for all else |
| `bf16` | bf16 | bf16 | bf16 |

`bf16` casts operands to bf16, without codes and scales. It is meant for studies whose compute dtype is not bf16.

An outer scale is NVFP4's second level of scales, above the block scales: one per token, tensor or expert. The value of
an operand is `values * outer`. `values` are exact in their dtype: MXFP8 values, and NVFP4 codes times their block
scales, are exact in bf16. Outer scales are not, so they multiply the matmul's fp32 sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.model.errors import CannotQuantise
from etude.model.precision import fp8, mxfp8
from etude.model.precision.formats import Quantised, dequantise
from etude.model.precision.fp8 import fake_block_fp8, quantise_block_fp8
from etude.model.precision.mxfp8 import MXFP8, fake_mxfp8, quantise_mxfp8
from etude.model.precision.nvfp4 import NVFP4, outer_scale, quantise_nvfp4, split_nvfp4
from etude.model.tiles import tiled

if TYPE_CHECKING:  # this package must run with torch alone
    from etude.recipe.precision import PrecisionRecipe

Rounding = Literal["bf16", "nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block"]


@dataclass(frozen=True, slots=True)
class Operand:
    values: Tensor
    """Rounded values [..., K], without NVFP4's outer scale: fp32, or bf16 where that is exact."""
    outer: Tensor | None = None
    """NVFP4's outer scale, by which the matmul's result is multiplied: fp32, broadcasts to [..., 1]; None means 1."""

    def rows(self, chosen_r: Tensor) -> Operand:
        """Return the rows `chosen_r` of this operand, [N, K]; index N stands for a row of zeros."""
        outer = self.outer
        if outer is not None and outer.dim():
            outer = F.pad(outer, (0, 0, 0, 1)).index_select(0, chosen_r)
        return Operand(F.pad(self.values, (0, 0, 0, 1)).index_select(0, chosen_r), outer)


@dataclass(frozen=True, slots=True)
class Numerics:
    """Emulated low precision: operands are rounded as their format says, then multiplied in fp32 (or bf16 where exact).

    If kernels compute the matmuls (`kernels/layer.py`), this object still determines the codes of the weights.
    """

    rounding: Rounding
    also: frozenset[str] = frozenset()
    """Modules to round in addition to the routed experts: "shared", "attention" or both."""
    reciprocal_bits: int | None = None
    """Significant bits of the reciprocals with which NVFP4 is emulated; None divides exactly."""
    invariant: bool = False
    """Whether matmuls run in tiles of fixed size, so that a row's product does not depend on the other rows."""

    @classmethod
    def of(cls, recipe: PrecisionRecipe) -> Numerics | None:
        """Return the numerics that a recipe's `[precision]` section describes; None if nothing is rounded."""
        if not recipe.rounds:
            return None
        return cls(recipe.experts, frozenset(recipe.also), recipe.reciprocal_bits, recipe.invariant)

    @property
    def block(self) -> int:
        """Block size of the backward pass. Each expert's tokens are padded to a multiple of it, so that no block has
        tokens of two experts. bf16 has no blocks; there the padding only limits the number of matmul shapes."""
        return fp8.BLOCK if self.rounding == "fp8_block" else mxfp8.BLOCK

    def activations(self, x: Tensor) -> Operand:
        """Round activations [R, K]. With `nvfp4_tensor` one outer scale is computed from all rows together."""
        match self.rounding:
            case "nvfp4":
                return Operand(*split_nvfp4(x, torch.float32, reciprocal_bits=self.reciprocal_bits))
            case "nvfp4_tensor":
                parts = split_nvfp4(x, torch.float32, per="tensor", reciprocal_bits=self.reciprocal_bits)
                return Operand(*parts)
            case "mxfp8":
                return Operand(fake_mxfp8(x, _exact(x.dtype)))
            case "fp8_block":
                return Operand(fake_block_fp8(x, torch.float32, rows=1))
            case "bf16":
                return Operand(_in_bf16(x))

    @property
    def has_codes(self) -> bool:
        return self.rounding != "bf16"

    def codes(self, weights: Sequence[Tensor]) -> list[Quantised]:
        """Quantise weights [E, M, K] that are all multiplied with the same input, such as gate and up. In NVFP4 they
        share an outer scale per expert, because kernels run them as one matmul."""
        match self.rounding:
            case "nvfp4" | "nvfp4_tensor":
                absmax = torch.stack([weight.detach().abs().amax((1, 2)) for weight in weights]).amax(0)
                outer = outer_scale(absmax.float()).view(-1, 1, 1)
                return [quantise_nvfp4(w, outer=outer, reciprocal_bits=self.reciprocal_bits) for w in weights]
            case "mxfp8":
                return [quantise_mxfp8(weight) for weight in weights]
            case "fp8_block":
                return [quantise_block_fp8(weight) for weight in weights]
            case "bf16":
                raise CannotQuantise("bf16 has no codes and scales")

    def operand(self, codes: Sequence[Quantised], dtype: torch.dtype) -> Operand:
        """Dequantise the codes of weights [E, M, K], and join the weights along M to one operand [E, sum of M, K].
        `dtype` is that of the activations."""
        values, outer = [], None
        for q in codes:
            if isinstance(q, NVFP4):
                values.append(dequantise(replace(q, outer=torch.ones_like(q.outer)), torch.float32))
                outer = q.outer
            else:
                values.append(dequantise(q, _exact(dtype) if isinstance(q, MXFP8) else torch.float32))
        return Operand(values[0] if len(values) == 1 else torch.cat(values, 1), outer)

    def weights(self, weights: Sequence[Tensor], dtype: torch.dtype) -> Operand:
        """Round weights [E, M, K] to one operand [E, sum of M, K], by way of their codes: a trainer gets the same
        values as an engine that loads the codes."""
        if not self.has_codes:
            return Operand(torch.cat([_in_bf16(weight) for weight in weights], 1))
        return self.operand(self.codes(weights), dtype)

    def product(self, x: Operand, w: Operand, cuts: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Compute x W^T, where expert e has the rows from cuts[e] to cuts[e + 1] of x. Sums are in fp32; they are
        multiplied by the outer scales and rounded once to `dtype`."""
        rows, experts = x.values.shape[0], len(cuts) - 1
        if (
            not self.invariant
            and rows == cuts[1] * experts
            and all(end - begin == cuts[1] for begin, end in pairwise(cuts))
        ):
            y = torch.bmm(x.values.view(experts, cuts[1], x.values.shape[-1]), w.values.mT)
            if w.outer is not None:
                y *= w.outer
            y = y.flatten(0, 1)
        else:
            # One expert after the other: grouped matmuls do not take fp32 on a GPU and are no faster on a CPU.
            y = x.values.new_empty(rows, w.values.shape[1])
            for expert, (begin, end) in enumerate(pairwise(cuts)):
                part, x_part, w_part = y[begin:end], x.values[begin:end], w.values[expert]
                if self.invariant:
                    part.copy_(tiled(x_part, w_part))
                else:
                    torch.mm(x_part, w_part.T, out=part)
                if w.outer is not None:
                    part *= w.outer[expert]
        if x.outer is not None:
            y *= x.outer
        return y.to(dtype)

    def input_gradient(self, dy: Tensor, weights: Sequence[Tensor], cuts: Sequence[int]) -> Tensor:
        """Compute dy W, the gradient of x, from rounded operands. W consists of `weights` ([E, M, K] each), joined
        along M. Expert e has the rows from cuts[e] to cuts[e + 1] of dy."""
        # Each weight's part of dy is rounded by itself, because its output width need not be a multiple of the block.
        parts = dy.split([weight.shape[1] for weight in weights], -1)
        left = torch.cat([self._backward(part) for part in parts], -1)
        right = torch.cat([self._transposed(weight) for weight in weights], -1)
        return self.product(Operand(left), Operand(right), cuts, dy.dtype)

    def weight_gradient(self, dy: Tensor, x: Tensor, cuts: Sequence[int]) -> Tensor:
        """Compute the gradient of each expert's weights, dy^T x over its rows, from rounded operands: [E, width of dy,
        width of x]. The number of an expert's rows must be a multiple of `block`."""
        left, right = self._backward(dy.T), self._backward(x.T)
        dw = left.new_empty(len(cuts) - 1, dy.shape[1], x.shape[1])
        for expert, (begin, end) in enumerate(pairwise(cuts)):
            torch.mm(left[:, begin:end], right[:, begin:end].T, out=dw[expert])
        return dw.to(dy.dtype)

    def _backward(self, x: Tensor) -> Tensor:
        """Round an operand of the backward pass that is not a weight: dy, dy transposed or x transposed."""
        if self.rounding == "fp8_block":
            return fake_block_fp8(x, torch.float32, rows=1)
        return fake_mxfp8(x, _exact(x.dtype)) if self.has_codes else _in_bf16(x)

    def _transposed(self, weight: Tensor) -> Tensor:
        """Round weights [E, M, K] for the backward pass, transposed to [E, K, M]."""
        if self.rounding == "fp8_block":
            return fake_block_fp8(weight, torch.float32).mT
        return fake_mxfp8(weight.mT, _exact(weight.dtype)) if self.has_codes else _in_bf16(weight.mT)


def _in_bf16(x: Tensor) -> Tensor:
    return x.detach().to(torch.bfloat16).to(_exact(x.dtype))


def _exact(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype that holds MXFP8 and bf16 values exactly: bf16 if `dtype` is bf16, else fp32."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
