"""Tiny networks of published families, in the shapes that vLLM computes on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.engine.tiny import Versions

from etude.model import Transformer, read_config

GROUPED = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "initializer_range": 0.15,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": GROUPED | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "qwen3_moe": GROUPED
    | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "tie_word_embeddings": False,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": 61,
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 64,
        "v_head_dim": 32,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "initializer_range": 0.15,
        "num_nextn_predict_layers": 1,
    },
}


class PublishedVersions(Versions):
    """Versions of a network of a published family; each has other weights altogether."""

    def __init__(self, root: Path, shape: dict[str, Any]) -> None:
        self.shape = shape
        self._again: set[int] = set()
        super().__init__(root)

    def model(self, version: int) -> Transformer:
        return Transformer(read_config(self.shape)).initialise(0 if version in self._again else version)

    def publish_first_again(self) -> int:
        """Publish the weights of version 0 under a new number."""
        version = self._published[-1] + 1
        self._again.add(version)
        return self._publish(version)
