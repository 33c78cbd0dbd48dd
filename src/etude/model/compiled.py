"""Compiles the parts of a network that are limited by memory: norms, rotary positions, dense feed-forwards.

torch's compiler makes one kernel of each, where torch alone reads and writes the activations a dozen times. Matmuls,
attention and experts are left as they are; their shapes change from batch to batch, for which whole layers would be
compiled again and again. A compiled part rounds less often to bf16, so results differ in their last bits.
"""

from __future__ import annotations

import torch

from etude.model.block import FeedForward
from etude.model.norm import RMSNorm
from etude.model.rope import turned
from etude.model.transformer import Transformer


def compile_parts(model: Transformer, backend: str = "inductor") -> None:
    """Compile the network's parts for training. The first steps take up to a minute, in which each part is compiled for
    the shapes that occur. `backend` is one of torch.compile's."""
    for module in model.modules():
        if isinstance(module, FeedForward | RMSNorm):
            module.compile(backend=backend, fullgraph=True, dynamic=True)
    model.rotary.turn = torch.compile(turned, backend=backend, fullgraph=True, dynamic=True)
