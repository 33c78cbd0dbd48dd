"""The Muon optimizer: momentum, then the nearest semi-orthogonal matrix, block by block.

A block is a part of a parameter that acts as one matrix in the network: one head of a query, output or latent-expansion
projection, one expert's matrix, or elsewhere the whole matrix. Blocks of equal shape are orthogonalised in one batch,
or a few if they are large, which saves many small Python calls. A block's update is scaled by 0.2 * sqrt(its longer
side), which makes it as large as an AdamW update, so that both optimizers share one learning rate.

The update's size does not depend on the momentum's, so an expert that no token of the step reached would go on moving
at full size. It is left alone, and its momentum fades.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
BATCH = 2**26
"""Largest number of numbers in the blocks that are orthogonalised at once; some four times as many exist meanwhile."""
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


def idle_experts(gradient: Tensor) -> Tensor | None:
    """Return a mask [E, 1, 1] of the experts whose gradient is all zeros; None if the tensor is no stack of experts."""
    return ~gradient.any(2, keepdim=True).any(1, keepdim=True) if gradient.ndim == 3 else None


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
    for (shorter, longer), pairs in shapes.items():
        for batch in _batches(pairs, max(1, BATCH // (shorter * longer))):
            result = orthogonalise(torch.cat([source for source, _ in batch]), dtype)
            parts = result.split([source.shape[0] for source, _ in batch])
            for (_, target), part in zip(batch, parts, strict=True):
                target.copy_(part).mul_(_SCALE * longer**0.5)
    return updates


def _batches(pairs: Iterable[tuple[Tensor, Tensor]], most: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the pairs of blocks in batches of at most `most` blocks; a stack of blocks may be divided."""
    batch: list[tuple[Tensor, Tensor]] = []
    room = most
    for source, target in pairs:
        first = 0
        while first < len(source):
            part = slice(first, first + room)
            batch.append((source[part], target[part]))
            taken = len(source[part])
            first, room = first + taken, room - taken
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch
