"""Linear layers whose matmul may be rounded to a low-precision format or computed in tiles, and may have an adapter."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.model.lora import LowRank
from etude.model.precision.numerics import Numerics, Operand
from etude.model.precision.rounded import rounded_linear
from etude.model.tiles import linear


class UnsetLinear(nn.Linear):
    """A linear layer whose parameters are not set when it is built: `Transformer.initialise` or a checkpoint does."""

    def reset_parameters(self) -> None:
        pass


class Linear(UnsetLinear):
    invariant = False
    """Whether to run the matmul in tiles of fixed size, so that a row's result does not depend on the other rows."""
    numerics: Numerics | None = None
    """Emulated rounding of the matmul; None computes it in the weight's dtype."""
    served: Operand | None = None
    """The rounded weight that `prepare` caches for inference; None rounds the weight in every call."""

    def __init__(self, width: int, out: int, bias: bool = False) -> None:
        super().__init__(width, out, bias=bias)
        self.lora: LowRank | None = None
        """Added to the output. It computes in its own dtype, whatever the matmul is rounded to."""

    def forward(self, x: Tensor) -> Tensor:
        if self.lora is None:
            return self._of_weight(x)
        product = linear if self.invariant else F.linear
        return self._of_weight(x) + cast(Tensor, self.lora(x, product, product))

    def _of_weight(self, x: Tensor) -> Tensor:
        if self.numerics is not None:
            y = rounded_linear(x, self.served or (self.weight.unsqueeze(0),), self.numerics)
        elif self.invariant:
            y = linear(x, self.weight)
        else:
            return super().forward(x)
        return y if self.bias is None else y + self.bias

    @torch.no_grad()
    def prepare(self) -> None:
        """Round the weight once for inference. Later changes of the weight have no effect until the next call."""
        if self.numerics is not None:
            self.served = self.numerics.weights((self.weight.unsqueeze(0),), self.weight.dtype)


class Expansion(UnsetLinear):
    """A linear layer without bias whose matrix is also used by itself, with the adapter in it: attention expands
    latents in training, and absorbs the matrix into the queries in generation. Both must round in the same way."""

    served: Tensor | None = None
    """The matrix with its adapter, which `prepare` caches for inference."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=False)
        self.lora: LowRank | None = None

    def matrix(self) -> Tensor:
        if self.lora is None:
            return self.weight
        return self.weight + self.lora.matrix() if self.served is None else self.served

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.matrix())

    @torch.no_grad()
    def prepare(self) -> None:
        """Compute the matrix once for inference. Later changes have no effect until the next call."""
        self.served = None
        self.served = None if self.lora is None else self.matrix()
