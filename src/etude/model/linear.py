"""A linear layer whose matmul may be rounded to a low-precision format or computed in tiles."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.model.precision.numerics import Numerics, Operand
from etude.model.precision.rounded import rounded_linear
from etude.model.tiles import linear


class Linear(nn.Linear):
    invariant = False
    """Whether to run the matmul in tiles of fixed size, so that a row's result does not depend on the other rows."""
    numerics: Numerics | None = None
    """Emulated rounding of the matmul; None computes it in the weight's dtype."""
    served: Operand | None = None
    """The rounded weight that `prepare` caches for inference; None rounds the weight in every call."""

    def __init__(self, width: int, out: int, bias: bool = False) -> None:
        super().__init__(width, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
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
