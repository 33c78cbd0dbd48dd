"""Tiny networks of every shape that the families know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from etude.model import ModelConfig, Transformer, Yarn, config_from_recipe, read_config
from etude.recipe.model import ModelRecipe

VOCAB = 61
TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_attention_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "initializer_range": 0.15,
}

GROUPED: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
    "initializer_range": 0.15,
}
"""The settings of a published config.json that families with grouped-query attention share."""

ConfigOf = Callable[..., ModelConfig]
ModelOf = Callable[..., Transformer]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Two would wait for each other, in networks this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def yarn_of_four() -> Yarn:
    return Yarn(factor=4.0, original_max_position_embeddings=16)


@pytest.fixture(scope="session")
def config_of() -> ConfigOf:
    def make(yarn: Yarn | None = None, **changes: Any) -> ModelConfig:
        if "model_type" in changes:
            heads = changes.pop("num_nextn_predict_layers", 0)
            return replace(read_config({**GROUPED, **changes}), num_nextn_predict_layers=heads)
        return config_from_recipe(ModelRecipe(**{**TINY, **changes}), VOCAB, yarn)

    return make


@pytest.fixture(scope="session")
def model_of(config_of: ConfigOf) -> ModelOf:
    """A random network whose norms and router biases are not at their neutral start."""

    def make(seed: int = 1, yarn: Yarn | None = None, **changes: Any) -> Transformer:
        model = Transformer(config_of(yarn, **changes)).initialise(seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if name.endswith(("norm.weight", "bias")):
                    tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.1)
        return model

    return make


@pytest.fixture(scope="session")
def tokens_of() -> Callable[..., torch.Tensor]:
    def make(batch: int, length: int, seed: int = 0) -> torch.Tensor:
        return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))

    return make


SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "q_lora": {"q_lora_rank": 20, "tie_word_embeddings": False},
    "yarn": {"yarn": yarn_of_four()},
    "yarn_other_mscale": {"yarn": Yarn(2.0, 16, 16.0, 2.0, 0.7, 0.3), "q_lora_rank": 20},
    "no_shared_expert": {"n_shared_experts": 0},
    "one_shared_expert": {"n_shared_experts": 1, "routed_scaling_factor": 2.5, "tie_word_embeddings": False},
    "groups": {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
    "all_moe": {"first_k_dense_replace": 0, "num_experts_per_tok": 4},
    "all_dense": {"first_k_dense_replace": 3},
    "other_eps": {"rms_norm_eps": 1e-3},
    "llama": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    },
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": 1},
    "qwen3": {
        "model_type": "qwen3",
        "head_dim": 12,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [1],
    },
    "glm4_moe": {
        "model_type": "glm4_moe",
        "head_dim": 8,
        "use_qk_norm": True,
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
    },
}
WITH_HEAD = {name: shape for name, shape in SHAPES.items() if "model_type" not in shape} | {
    f"{name}_with_head": SHAPES[name] | {"num_nextn_predict_layers": 1} for name in ("qwen3", "qwen3_moe")
}


@pytest.fixture(params=SHAPES, scope="session")
def shaped(request: pytest.FixtureRequest, model_of: ModelOf) -> Transformer:
    return model_of(**SHAPES[request.param])


@pytest.fixture(params=WITH_HEAD, scope="session")
def with_head(request: pytest.FixtureRequest, model_of: ModelOf) -> Transformer:
    """A network with an MTP head."""
    return model_of(**WITH_HEAD[request.param])
