from __future__ import annotations

from typing import Any

import pytest

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
        ({"model_type": "qwen3_moe"}, "model_type"),
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
