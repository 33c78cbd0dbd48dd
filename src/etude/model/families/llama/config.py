"""Published settings of Llama."""

from __future__ import annotations

from typing import Any

from etude.model.config import ModelConfig
from etude.model.families.grouped import has_biases, read_grouped, write_grouped
from etude.model.families.published import Published


def read(published: Published) -> ModelConfig:
    published.require_values({"pretraining_tp": 1})
    biases = "qkvo" if published.data.get("attention_bias") else ""
    return read_grouped(published, "llama", biases=biases, mlp_bias=bool(published.data.get("mlp_bias")))


def write(config: ModelConfig) -> dict[str, Any]:
    return {
        **write_grouped(config),
        "attention_bias": has_biases(config),
        "mlp_bias": config.mlp_bias,
    }
