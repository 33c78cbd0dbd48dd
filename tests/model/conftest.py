"""Tiny networks of every shape that the family knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from etude.model import ModelConfig, Transformer, Yarn, config_from_recipe
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
                if name.endswith(("norm.weight", "e_score_correction_bias")):
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
}


@pytest.fixture(params=SHAPES, scope="session")
def shaped(request: pytest.FixtureRequest, model_of: ModelOf) -> Transformer:
    return model_of(**SHAPES[request.param])
