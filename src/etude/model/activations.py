"""How many bytes a training pass holds beside weights and gradients, computed from a network's shape alone.

The formulas count what autograd keeps of each part for the backward pass (norms, attention, feed-forwards, experts), as
these parts are written in this package; tests compare them with what autograd really keeps, family by family. They hold
for networks of any size, none of which is built.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from etude.model.attend import LONG, LONG_IN_FP32, QUERY_BLOCK
from etude.model.config import LatentShape, MixtureShape, ModelConfig
from etude.model.experts import ROWS_STEP
from etude.model.head_losses import chunk_rows

_FULL = 4
"""Bytes of an fp32 number."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass: its rows, tokens per row, and dtype of activations."""

    rows: int
    length: int
    dtype: torch.dtype = torch.float32
    cuda: bool = False
    drafts: bool = False
    """Whether the MTP heads are trained in the same pass."""
    detached: bool = True
    """Whether the drafts' loss gives gradients to the heads alone."""
    entropies: bool = False
    """Whether the loss is RL's, which computes entropies too."""
    trunk: bool = True
    """Whether all other layers are trained; in the stage mtp the heads alone may be."""
    adapters: frozenset[str] | None = None
    """The targets whose matrices have adapters, everything else being frozen; None trains everything."""
    rank: int = 0
    """Rank of the adapters."""

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize

    def trains(self, target: str) -> bool:
        """Whether the inputs of the target's matrices are kept, for the gradients of these or of their adapters."""
        return self.adapters is None or target in self.adapters

    def low(self, target: str, matrices: int) -> int:
        """Bytes per token that the adapters of so many matrices keep."""
        return matrices * self.rank * self.bytes if self.adapters and target in self.adapters else 0


@dataclass(frozen=True, slots=True)
class Activations:
    layers: int
    """Bytes that the layers keep, checkpointed or not."""
    layer: int
    """Bytes that the largest layer alone keeps without checkpointing."""
    ends: int
    """Bytes that the last norm keeps, and the MTP heads besides their layers."""
    logits: int
    """Bytes of the loss: a chunk of logits with what is computed from it, and the gradients of the hidden states and of
    the head."""

    @property
    def peak(self) -> int:
        """Largest sum of bytes that exist together."""
        return self.layers + self.ends + self.last

    @property
    def last(self) -> int:
        """Bytes of what comes last in a forward or first in a backward pass: the loss, or the gradients of the last
        layer, which take about half as much as the layer keeps."""
        return max(self.logits, self.layer // 2)


def activations_of(config: ModelConfig, work: Pass, *, checkpointed: bool = False) -> Activations:
    """Return what one pass of a training step holds besides weights, gradients and optimizer states."""
    half, width, trunk = work.bytes, config.hidden_size, config.num_hidden_layers
    heads = config.num_nextn_predict_layers if work.drafts else 0
    layers = range(0 if work.trunk else trunk, trunk + heads)
    sizes = [_layer(config, work, layer) for layer in layers]
    largest, inputs = max(sizes), work.tokens * width * half
    kept = len(sizes) * inputs + largest if checkpointed else sum(sizes)
    ends = work.trunk * work.tokens * _norm(width, half)
    ends += heads * work.tokens * (3 * _norm(width, half) + 2 * width * half)
    vocabulary = config.vocab_size
    slope = (work.trunk + heads) * work.tokens * width * half
    chunk = _chunks(work) * _FULL * min(work.tokens, chunk_rows(vocabulary, cuda=work.cuda)) * vocabulary
    wide = vocabulary * width * _FULL if half < _FULL and not work.cuda else 0
    gradients = 0 if work.adapters is not None else work.trunk + (0 if work.detached else heads)
    gradient = gradients * vocabulary * width * (_FULL + (half if half < _FULL else 0))
    return Activations(kept, largest, ends, slope + chunk + wide + gradient)


def must_checkpoint(config: ModelConfig, work: Pass, free: float) -> bool:
    """Whether "auto" checkpoints a pass: without it, activations would take more than half of the free memory."""
    return activations_of(config, work).peak > free / 2


def _chunks(work: Pass) -> int:
    """How many tensors of the size of a chunk's fp32 logits exist at once. The next-token loss works in one, but for
    copies of its gradient in bf16 and again in fp32; on a GPU it does not work in place."""
    if work.drafts:
        return 4
    if work.bytes < _FULL:
        return 3
    return 2 if work.cuda or work.entropies else 1


def _layer(config: ModelConfig, work: Pass, layer: int) -> int:
    mixture, width = config.mixture_of(layer), config.hidden_size
    if mixture is None:
        inner, read = _dense(config.intermediate_size, work, "mlp"), work.trains("mlp")
    else:
        inner = _mixture(width, mixture, work)
        read = work.adapters is None or (mixture.shared_width > 0 and work.trains("shared"))
    inner += work.tokens * _norm(width, work.bytes, read)
    if work.adapters is not None and layer == 0:  # the embedding is frozen: nothing before the first adapter is kept
        return inner + (_attention(config, work) + work.tokens * width * work.bytes) * work.trains("attention")
    return inner + _attention(config, work) + work.tokens * _norm(width, work.bytes, work.trains("attention"))


def _norm(width: int, half: int, read: bool = True) -> int:
    """Bytes per token that an RMS norm keeps: its input and a scale, and its result for the matmul that reads it."""
    return width * (1 + read) * half + _FULL


def _attention(config: ModelConfig, work: Pass) -> int:
    shape, half, trained = config.attention, work.bytes, work.trains("attention")
    fixed = 0
    if isinstance(shape, LatentShape):
        value, keys = shape.value, shape.heads
        projected = _norm(shape.kv_rank, half, trained) + shape.rope * half
        projected += _norm(shape.q_rank, half, trained) if shape.q_rank else 0
        projected += work.low("attention", 4 if shape.q_rank else 3)
        if work.low("attention", 1):  # the expansion's matrix with its adapter
            fixed = shape.heads * (shape.nope + shape.value) * (shape.kv_rank + work.rank) * half
    else:
        value, keys = shape.head, shape.groups
        projected = (shape.heads + shape.groups) * (shape.head * half + _FULL) if shape.qk_norm else 0
        projected += work.low("attention", 4)
    result = shape.heads * value if trained else 0
    long = LONG_IN_FP32 if half == _FULL and not work.cuda else LONG
    if work.cuda or work.length >= long:  # the fused kernel: operands of one width, its result, sums of exponentials
        wide = max(shape.query, value)
        values = wide if value < wide else value + (shape.nope if isinstance(shape, LatentShape) else 0)
        numbers = (shape.heads + keys) * shape.query + keys * values + shape.heads * wide
        numbers += result if value < wide else 0
        return work.tokens * (projected + numbers * half + shape.heads * _FULL) + fixed
    blocks = (work.length + QUERY_BLOCK) / (2 * QUERY_BLOCK)  # number of blocks that a key is a part of, on average
    numbers = shape.heads * int(blocks * QUERY_BLOCK) + result
    if keys < shape.heads:  # each block has a copy of its queries, and a copy of its keys and values for each head
        numbers += shape.heads * int(2 * shape.query + blocks * (shape.query + value))
    else:
        numbers += shape.heads * (2 * shape.query + value)
    return work.tokens * (projected + numbers * half) + fixed


def _dense(inner: int, work: Pass, target: str) -> int:
    """Bytes of gate and up, from which the backward pass computes the rest again (gated.py)."""
    return work.tokens * (2 * inner * work.bytes + work.low(target, 3))


def _mixture(width: int, shape: MixtureShape, work: Pass) -> int:
    pairs, half, trained = work.tokens * shape.per_token, work.bytes, work.trains("experts")
    rows = pairs + (0 if work.cuda else shape.experts * ROWS_STEP // 2)
    # A trained router keeps its input in fp32; the norm's result itself is kept by shared experts alone.
    read = width * (_FULL - (0 if shape.shared_width else half)) if half < _FULL and work.adapters is None else 0
    router = work.tokens * (read + shape.experts * _FULL)
    routed = rows * ((trained * width + (3 + trained) * shape.width) * half + work.low("experts", 3))
    joined = pairs * (width * half + 4 * 8)
    return router + routed + joined + _dense(shape.shared_width, work, "shared") * (shape.shared_width > 0)
