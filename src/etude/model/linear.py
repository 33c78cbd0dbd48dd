"""A linear layer without bias whose matmul may be rounded or computed in tiles."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.model.precision.numerics import Numerics, Operand
from etude.model.precision.rounded import rounded_linear
from etude.model.tiles import linear


class Linear(nn.Linear):
    invariant = False
    numerics: Numerics | None = None
    served: Operand | None = None
    """The rounded weight, cached once the weight is no longer trained."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.numerics is None:
            return linear(x, self.weight) if self.invariant else super().forward(x)
        return rounded_linear(x, self.served or (self.weight.unsqueeze(0),), self.numerics)

    @torch.no_grad()
    def prepare(self) -> None:
        if self.numerics is not None:
            self.served = self.numerics.weights((self.weight.unsqueeze(0),), self.weight.dtype)
