"""Names of a network's tensors in published checkpoints, by the rules that families share.

A checkpoint has one tensor per routed expert, the network one stacked tensor per layer. Where a family publishes MTP
heads, head k is layer `num_hidden_layers + k`, with copies of the shared embedding and output head. Elsewhere heads are
an addition of ours, and keep the network's own names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from etude.model.config import ModelConfig

_STACKED = re.compile(r"(.*\.mlp\.experts)\.(gate_proj|up_proj|down_proj)")
_MTP = re.compile(r"mtp\.(\d+)\.(?:block\.)?(.*)")


@dataclass(frozen=True, slots=True)
class TensorNames:
    prefix: str = ""
    """Beginning of all names, where the network is part of a larger model."""
    publishes_heads: bool = False
    """Whether the family's checkpoints have MTP heads."""
    carried: tuple[str, ...] = ()
    """Beginnings of the names of tensors outside the network, which are written again as they were found."""

    @property
    def embedding(self) -> str:
        return f"{self.prefix}model.embed_tokens.weight"

    @property
    def head(self) -> str:
        return f"{self.prefix}lm_head.weight"

    def published(self, name: str, config: ModelConfig) -> str:
        """Return the published name of a tensor of the network's state dict."""
        head = _MTP.fullmatch(name)
        if head is None:
            return self.head if name == "lm_head.weight" else f"{self.prefix}model.{name}"
        return f"{self._layer(int(head[1]), config)}.{head[2]}" if self.publishes_heads else name

    def of_experts(self, published: str, experts: int) -> list[str] | None:
        """Return the names of the single experts' tensors, if the published name is that of a stack, else None."""
        stacked = _STACKED.fullmatch(published)
        return stacked and [f"{stacked[1]}.{expert}.{stacked[2]}.weight" for expert in range(experts)]

    def copies(self, config: ModelConfig) -> dict[str, str]:
        """Return the tensors that are stored twice: the name of the copy, and that of its original."""
        copies: dict[str, str] = {}
        for head in range(config.num_nextn_predict_layers if self.publishes_heads else 0):
            layer = self._layer(head, config)
            copies |= {f"{layer}.embed_tokens.weight": self.embedding, f"{layer}.shared_head.head.weight": self.head}
        return copies

    def _layer(self, head: int, config: ModelConfig) -> str:
        return f"{self.prefix}model.layers.{config.num_hidden_layers + head}"
