"""Low-rank adapters (LoRA): what a linear layer, or each routed expert, adds to the output of its frozen matrix.

An adapter is never merged into the matrix while a network trains or serves. In bf16 the sum of both would be rounded to
the matrix's few digits, and the trainer's log-probs would differ from those of an engine that adds the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor], Tensor]
"""Multiplies rows x by the transpose of a matrix, or of one matrix per expert."""


class LowRank(nn.Module):
    """Adds scale * B A to a matrix [out, in], or to each of a stack [experts, out, in]."""

    def __init__(self, a: Tensor, b: Tensor, scale: float) -> None:
        """Take A [.., rank, in] and B [.., out, rank]."""
        super().__init__()
        self.a, self.b, self.scale = nn.Parameter(a), nn.Parameter(b), scale

    @property
    def rank(self) -> int:
        return self.a.shape[-2]

    def forward(self, x: Tensor, times_a: Product, times_b: Product) -> Tensor:
        return times_b(times_a(x, self.a) * self.scale, self.b)

    def matrix(self) -> Tensor:
        """Return what is added to the matrix, in the adapter's dtype."""
        return (self.b * self.scale) @ self.a


class ExpertAdapters(nn.Module):
    """The adapters of one layer's routed experts, stacked as the experts are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj: LowRank | None = None
        self.up_proj: LowRank | None = None
        self.down_proj: LowRank | None = None


def projected(x: Tensor, weight: Tensor, lora: LowRank | None, product: Product) -> Tensor:
    """Multiply rows by a matrix and by its adapter, if it has one, in the same way."""
    y = product(x, weight)
    return y if lora is None else y + cast(Tensor, lora(x, product, product))


@torch.no_grad()
def fresh_adapter(weight: Tensor, rank: int, scale: float, generator: torch.Generator) -> LowRank:
    """Return an adapter of this matrix or stack that changes nothing yet: A is random, B zero."""
    *stack, out, width = weight.shape
    if weight.is_meta:
        return LowRank(weight.new_empty(*stack, rank, width), weight.new_empty(*stack, out, rank), scale)
    a = torch.empty(*stack, rank, width).uniform_(-1, 1, generator=generator) / width**0.5
    return LowRank(a.to(weight.device), torch.zeros(*stack, out, rank, device=weight.device), scale)


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the adapters' part of the network's state dict; empty without adapters."""
    parts = {name for name, module in model.named_modules() if isinstance(module, LowRank)}
    return {name: tensor for name, tensor in model.state_dict().items() if name.rpartition(".")[0] in parts}
