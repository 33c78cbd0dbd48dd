"""Network configurations of `make gpu`, written without the recipe, which needs packages a GPU machine may lack."""

from __future__ import annotations

from typing import Any

from etude.model import read_config

BASE: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "q_lora_rank": None,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "num_nextn_predict_layers": 1,
}
CHECKED = read_config(
    dict(
        BASE,
        vocab_size=61,
        hidden_size=64,
        num_hidden_layers=3,
        intermediate_size=96,
        moe_intermediate_size=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        num_attention_heads=4,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
        initializer_range=0.1,
    )
)
SMALL = read_config(
    dict(
        BASE,
        vocab_size=32_000,
        hidden_size=128,
        num_hidden_layers=4,
        intermediate_size=352,
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        num_attention_heads=4,
        kv_lora_rank=48,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        initializer_range=0.02,
    )
)
MID = read_config(
    dict(
        BASE,
        vocab_size=32_000,
        hidden_size=1024,
        num_hidden_layers=12,
        intermediate_size=2816,
        moe_intermediate_size=512,
        n_routed_experts=32,
        num_experts_per_tok=4,
        num_attention_heads=16,
        kv_lora_rank=256,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        initializer_range=0.02,
    )
)
