"""Names of a network's tensors in published checkpoints, by the rules that families share.

A checkpoint has one tensor per routed expert, the network one stacked tensor per layer. MTP head k is layer
`num_hidden_layers + k`, with copies of the shared embedding and output head.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from etude.model.config import ModelConfig

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_STACKED = re.compile(r"(.*\.mlp\.experts)\.(gate_proj|up_proj|down_proj)")
_MTP = re.compile(r"mtp\.(\d+)\.(?:block\.)?(.*)")


@dataclass(frozen=True, slots=True)
class TensorNames:
    def published(self, name: str, config: ModelConfig) -> str:
        """Return the published name of a tensor of the network's state dict."""
        head = _MTP.fullmatch(name)
        if head is not None:
            return f"model.layers.{config.num_hidden_layers + int(head[1])}.{head[2]}"
        return name if name == HEAD else f"model.{name}"

    def of_experts(self, published: str, experts: int) -> list[str] | None:
        """Return the names of the single experts' tensors, if the published name is that of a stack, else None."""
        stacked = _STACKED.fullmatch(published)
        return stacked and [f"{stacked[1]}.{expert}.{stacked[2]}.weight" for expert in range(experts)]

    def copies(self, config: ModelConfig) -> dict[str, str]:
        """Return the tensors that are stored twice: the name of the copy, and that of its original."""
        copies: dict[str, str] = {}
        for head in range(config.num_nextn_predict_layers):
            layer = f"model.layers.{config.num_hidden_layers + head}"
            copies |= {f"{layer}.embed_tokens.weight": EMBEDDING, f"{layer}.shared_head.head.weight": HEAD}
        return copies
