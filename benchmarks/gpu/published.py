"""Published shapes for the rows of `line_rows.py`, with random weights, and tiny ones of the same kinds to try them."""

from __future__ import annotations

from typing import Any

_DENSE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_act": "silu",
    "attention_bias": False,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
}
QWEN3_06B = _DENSE | {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
}
QWEN3_4B = _DENSE | {
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
}
SLICE_30B = _DENSE | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}
"""Four of the 48 layers of Qwen3-Coder-30B-A3B, as many as fit one GPU with their optimizer states."""
_SMALL = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "head_dim": 16}
TINY_DENSE = QWEN3_06B | _SMALL | {"num_attention_heads": 4, "num_key_value_heads": 2}
TINY_SPARSE = (
    SLICE_30B
    | _SMALL
    | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }
)
