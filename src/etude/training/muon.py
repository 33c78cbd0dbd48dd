"""The Muon optimizer: momentum, then the nearest semi-orthogonal matrix, block by block.

A block is a part of a parameter that acts as one matrix in the network: one head of a query, output or latent-expansion
projection, one expert's matrix, or elsewhere the whole matrix. Blocks of equal shape are orthogonalised in one batch,
which saves many small Python calls. A block's update is scaled by 0.2 * sqrt(its longer side), which makes it as large
as an AdamW update, so that both optimizers share one learning rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
_SCALE = 0.2
_ADAMW_PARTS = ("embed_tokens", "lm_head", "mlp.gate.", "router", "e_score_correction_bias")

Blocks = Callable[[Tensor], list[Tensor]]
"""A function that splits a tensor of a parameter's shape into views [n, rows, columns] covering it exactly once."""


def orthogonalise(blocks_nrc: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Approximate the nearest semi-orthogonal matrix of each block (rows <= columns) by five Newton-Schulz steps."""
    a, b, c = _COEFFICIENTS
    x = blocks_nrc.to(dtype)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def blocks_of(name: str, parameter: nn.Parameter, config: Any) -> Blocks | None:
    """Return the function that splits a parameter into blocks; None if AdamW handles it. `config` is the network's
    ModelConfig, which knows the projections that consist of heads; None for other modules."""
    if parameter.ndim < 2 or any(part in name for part in _ADAMW_PARTS):
        return None
    if parameter.ndim == 3:
        return lambda tensor: [tensor]  # stacked experts
    split = None if config is None else config.head_split(name)
    if split is None:
        return lambda tensor: [tensor.unsqueeze(0)]
    if split.axis == 0:
        return lambda tensor: list(tensor.view(split.heads, sum(split.parts), -1).split(split.parts, dim=1))
    return lambda tensor: list(tensor.view(len(tensor), split.heads, -1).transpose(0, 1).split(split.parts, dim=2))


@torch.no_grad()
def muon_updates(momenta: Iterable[tuple[Tensor, Blocks]], dtype: torch.dtype) -> list[Tensor]:
    """Compute the scaled update of each momentum tensor; blocks of equal shape are orthogonalised in one batch."""
    updates: list[Tensor] = []
    shapes: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for momentum, blocks in momenta:
        update = torch.empty_like(momentum)
        updates.append(update)
        for source, target in zip(blocks(momentum), blocks(update), strict=True):
            wide = source.shape[1] <= source.shape[2]
            pair = (source, target) if wide else (source.mT, target.mT)
            shapes[pair[0].shape[1], pair[0].shape[2]].append(pair)
    for (_, longer), pairs in shapes.items():
        result = orthogonalise(torch.cat([source for source, _ in pairs]), dtype)
        parts = result.split([source.shape[0] for source, _ in pairs])
        for (_, target), part in zip(pairs, parts, strict=True):
            target.copy_(part).mul_(_SCALE * longer**0.5)
    return updates
