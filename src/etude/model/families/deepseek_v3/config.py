"""Published settings of DeepSeek-V3 and Kimi-K2, and the network of a recipe, whose fields are named like them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etude.model.config import LatentShape, ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families import biased_mixture
from etude.model.families.biased_mixture import read_heads, read_mixture, write_mixture
from etude.model.families.published import Published, write_rope
from etude.model.rope import Yarn

if TYPE_CHECKING:  # the network itself must run with torch alone, as `make gpu` needs
    from etude.recipe.model import ModelRecipe

_FIXED: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
"""Settings with only one supported value."""
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
)


def read(published: Published) -> ModelConfig:
    published.require_values(_FIXED)
    published.require(*biased_mixture.REQUIRED, *_REQUIRED)
    data = published.data
    if data.get("num_key_value_heads") not in (None, data["num_attention_heads"]):
        raise UnsupportedCheckpoint("num_key_value_heads must equal num_attention_heads under latent attention")
    return ModelConfig(
        family="deepseek_v3",
        vocab_size=data["vocab_size"],
        hidden_size=data["hidden_size"],
        num_hidden_layers=data["num_hidden_layers"],
        intermediate_size=data["intermediate_size"],
        attention=LatentShape(
            heads=data["num_attention_heads"],
            q_rank=data.get("q_lora_rank"),
            kv_rank=data["kv_lora_rank"],
            nope=data["qk_nope_head_dim"],
            rope=data["qk_rope_head_dim"],
            value=data["v_head_dim"],
        ),
        mixture=read_mixture(published),
        rope=published.rope(interleaved=data.get("rope_interleave", True)),
        max_position_embeddings=data["max_position_embeddings"],
        rms_norm_eps=data["rms_norm_eps"],
        tie_word_embeddings=data.get("tie_word_embeddings", False),
        num_nextn_predict_layers=read_heads(published),
        initializer_range=data.get("initializer_range", 0.02),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    attention, rope = config.attention, write_rope(config.rope)
    assert isinstance(attention, LatentShape)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "intermediate_size": config.intermediate_size,
        **write_mixture(config),
        "num_attention_heads": attention.heads,
        "q_lora_rank": attention.q_rank,
        "kv_lora_rank": attention.kv_rank,
        "qk_nope_head_dim": attention.nope,
        "qk_rope_head_dim": attention.rope,
        "v_head_dim": attention.value,
        "rope_theta": rope["rope_theta"],
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        **_FIXED,
        "rope_interleave": config.rope.interleaved,
        "num_key_value_heads": attention.heads,
        "rope_scaling": rope["rope_scaling"],
        "bos_token_id": None,
        "eos_token_id": None,
    }


def config_from_recipe(recipe: ModelRecipe, vocab_size: int, yarn: Yarn | None = None) -> ModelConfig:
    """Return the network of a recipe's `[model]` section, whose fields have the published names."""
    config = read(Published({**recipe.model_dump(), "vocab_size": vocab_size}))
    rope = replace(config.rope, scaling=yarn)
    return replace(config, rope=rope, embedding_scale=recipe.embedding_scale)
