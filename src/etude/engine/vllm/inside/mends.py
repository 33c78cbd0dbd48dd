"""Mends of vLLM's faults (known.py says which), by documented hooks and methods of its own classes.

The environment variable ETUDE_VLLM_WITHOUT names mends to leave out, separated by commas: tests use it to show that the
fault is still there, and that the probe finds it.
"""

from __future__ import annotations

import os
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


def mend_rope_of_latent_attention() -> None:
    """Rotate positions in plain torch, where latent attention runs on a CPU."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    if not left_out("rope_of_latent_attention"):
        RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native
