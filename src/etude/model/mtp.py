"""Multi-token prediction (MTP), as published: heads that predict tokens further ahead than the next one.

At position t, head k (from 0) reads a hidden state and the embedding of token t + k + 1, and predicts token t + k + 2.
Head 0 reads the trunk's hidden state at t; each later head reads the normed hidden state of the head before it. All
heads share the trunk's embedding and output head.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from etude.model.attention import Context
from etude.model.block import Block
from etude.model.config import ModelConfig
from etude.model.linear import Linear
from etude.model.norm import RMSNorm
from etude.model.rope import Rotation
from etude.model.router import Routing


class SharedHead(nn.Module):
    """The norm at the end of an MTP head, under its published name. The output head itself is the trunk's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class MtpLayer(nn.Module):
    """Joins a token's embedding to the hidden state of an earlier position and runs one transformer layer on both."""

    def __init__(self, config: ModelConfig, head: int) -> None:
        super().__init__()
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = Linear(2 * config.hidden_size, config.hidden_size)
        self.block = Block(config, config.num_hidden_layers + head)
        self.shared_head = SharedHead(config)

    def forward(
        self, embedded_btd: Tensor, hidden_bth: Tensor, rotation: Rotation, context: Context
    ) -> tuple[Tensor, Routing | None]:
        """Return the normed hidden state that the output head reads, and the layer's routing (None in a dense
        layer)."""
        joined = torch.cat((self.enorm(embedded_btd), self.hnorm(hidden_bth)), dim=-1)
        x, routing = self.block(self.eh_proj(joined), rotation, context)
        return cast(Tensor, self.shared_head.norm(x)), routing
