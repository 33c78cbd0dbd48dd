"""Mends of vLLM's faults (known.py says which), by hooks and methods of its own classes.

The environment variable ETUDE_VLLM_WITHOUT names mends to leave out, separated by commas: tests use it to show that the
fault is still there, and that the probe finds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch


def left_out(fault: str) -> bool:
    return fault in os.environ.get("ETUDE_VLLM_WITHOUT", "").split(",")


def mend_tied_head(model: torch.nn.Module) -> None:
    """Pack a tied head again. An update loads the embedding, whose memory it shares, but not the head."""
    head: Any = getattr(model, "lm_head", None)
    if head is None or left_out("tied_head") or not getattr(model.config, "tie_word_embeddings", False):
        return
    embedding: Any = model.model.embed_tokens  # type: ignore[union-attr]
    if head is not embedding:
        head.weight = embedding.weight
    head.quant_method.process_weights_after_loading(head)


def mend_packed_experts(model: torch.nn.Module, loaded: Iterable[str]) -> None:
    """Pack the routed experts of layers that were loaded, given by the beginning of their names. vLLM packs them only
    after the first load."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    beginnings = () if left_out("packed_experts") else tuple(loaded)
    for name, module in model.named_modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        experts = getattr(kernel, "fused_experts", None)
        if isinstance(experts, CPUUnquantizedExperts) and name.startswith(beginnings):
            experts.process_weights_after_loading(module)


def mend_rope_of_latent_attention() -> None:
    """Rotate positions with vLLM's code in plain torch in place of its kernel for CPUs. Called before the model is
    built."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    class RotaryEmbeddingInTorch(RotaryEmbedding):
        def forward_cpu(self, *arguments: Any, **options: Any) -> Any:
            return self.forward_native(*arguments, **options)

    if not left_out("rope_of_latent_attention"):
        RotaryEmbedding.register_oot(RotaryEmbeddingInTorch, name="RotaryEmbedding")
