"""Published settings of GLM-4.5 and GLM-4.6."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from etude.model.config import GroupedShape, ModelConfig
from etude.model.families.biased_mixture import read_heads, read_mixture, write_mixture
from etude.model.families.grouped import has_biases, read_grouped, write_grouped
from etude.model.families.published import Published

_ROTATED = 0.5
"""Share of a head's dimensions that is rotated where config.json names none."""


def read(published: Published) -> ModelConfig:
    published.require("num_key_value_heads")
    config = read_grouped(
        published,
        "glm4_moe",
        biases="qkv" if published.data.get("attention_bias") else "",
        qk_norm=bool(published.data.get("use_qk_norm", False)),
        mixture=read_mixture(published),
        rotated=_ROTATED,
    )
    return replace(config, num_nextn_predict_layers=read_heads(published))


def write(config: ModelConfig) -> dict[str, Any]:
    shape = config.attention
    assert isinstance(shape, GroupedShape)
    return {
        **write_grouped(config),
        **write_mixture(config),
        "attention_bias": has_biases(config),
        "use_qk_norm": shape.qk_norm,
        "partial_rotary_factor": shape.rope / shape.head,
    }
