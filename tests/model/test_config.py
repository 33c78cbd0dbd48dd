from __future__ import annotations

import math
from typing import Any

import pytest
from tests.model.conftest import SHAPES

from etude.model import (
    Parameters,
    Transformer,
    UnsupportedCheckpoint,
    config_from_recipe,
    parameters_of,
    read_config,
)
from etude.model.families import write_config
from etude.recipe.model import ModelRecipe


def test_parameters_are_counted_exactly(shaped: Transformer) -> None:
    count = parameters_of(shaped.config)
    unused = shaped.config.n_routed_experts - shaped.config.num_experts_per_tok
    idle = unused * 3 * 32 * 16 * shaped.config.moe_layers + sum(p.numel() for p in shaped.mtp.parameters())
    assert count == Parameters(sum(p.numel() for p in shaped.parameters()), count.total - idle)
    assert parameters_of(config_from_recipe(ModelRecipe(), 1024)) == Parameters(1595376, 811328)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba2"}, "mamba2.*known are .*llama"),
        ({"attention_bias": True}, "attention_bias"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"num_key_value_heads": 1}, "num_key_value_heads"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "original_max_position_embeddings"),
        ({"rope_theta": None}, "rope_theta"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(config_of: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        read_config({**write_config(config_of()), **change})


def test_missing_fields_are_named(config_of: Any) -> None:
    data = write_config(config_of())
    del data["n_group"], data["kv_lora_rank"]
    with pytest.raises(UnsupportedCheckpoint, match="lacks n_group, kv_lora_rank"):
        read_config(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        ({"num_key_value_heads": None}, "lacks num_key_value_heads"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"num_experts": 1}, "num_experts_per_tok is 2 of 1"),
        ({"num_experts": "six"}, "num_experts is 'six'"),
        ({"hidden_size": 32.0}, "hidden_size is '32.0'"),
        ({"rope_theta": "large"}, "rope_theta is 'large'"),
        ({"rope_scaling": {"type": "yarn", "factor": "x", "original_max_position_embeddings": 16}}, "damaged: .*'x'"),
        ({"mlp_only_layers": 5}, "damaged"),
    ],
)
def test_what_grouped_attention_does_not_do_is_refused_by_name(
    config_of: Any, change: dict[str, Any], message: str
) -> None:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    with pytest.raises(UnsupportedCheckpoint, match=message):
        config_of(model_type="qwen3_moe", **{**sizes, **change})


def test_only_settings_that_changed_are_written_anew(config_of: Any) -> None:
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    found = {"model_type": "qwen3", "rope_parameters": rope, "head_dim": None, "eos_token_id": 7, "use_cache": False}
    config = config_of(**found).extended(4.0, 16)
    was, now = config.published, write_config(config)
    assert read_config(now) == config
    assert {name: value for name, value in now.items() if was.get(name) != value} == {
        "rope_theta": 5000.0,
        "rope_scaling": now["rope_scaling"],
    }
    assert was.keys() - now.keys() == {"rope_parameters"}, "it would say something else"


def test_a_longer_context_scales_rotations_as_each_kind_of_attention_publishes_it(config_of: Any) -> None:
    latent, grouped = (config_of(**shape).extended(4.0, 16) for shape in ({}, {"model_type": "qwen3"}))
    assert (latent.rope.scaling.rotation_scale, latent.softmax_scale * 4) == (1.0, pytest.approx(1.2965, abs=1e-4))
    assert grouped.rope.scaling.rotation_scale == pytest.approx(0.1 * math.log(4) + 1)
    assert grouped.softmax_scale == 1 / math.sqrt(128)
    again = grouped.extended(2.0).rope.scaling
    assert (again.factor, again.original_max_position_embeddings) == (8.0, 16)


def test_positions_grow_unless_they_count_the_longer_context_already(config_of: Any) -> None:
    config = config_of(model_type="qwen3")
    assert config.extended(4.0, 256).max_position_embeddings == 1024
    longer = config.extended(4.0).extended(2.0)
    assert (longer.max_position_embeddings, longer.rope.scaling.factor) == (8192, 8.0)
    assert longer.rope.scaling.original_max_position_embeddings == 1024
    assert write_config(longer)["max_position_embeddings"] == 8192


def test_a_longer_context_keeps_a_partial_rotation(config_of: Any) -> None:
    rope = {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": 0.25}
    config = config_of(**SHAPES["glm4_moe"] | {"rope_parameters": rope}).extended(4.0, 16)
    assert config.attention.rope == 2
    assert read_config(write_config(config)) == config
