"""Published settings of Qwen3."""

from __future__ import annotations

from typing import Any

from etude.model.config import ModelConfig
from etude.model.families.grouped import has_biases, read_grouped, write_grouped
from etude.model.families.published import Published

_HEAD = 128
"""Width of a head where config.json names none."""


def read(published: Published) -> ModelConfig:
    published.require("num_key_value_heads")
    biases = "qkvo" if published.data.get("attention_bias") else ""
    return read_grouped(published, "qwen3", biases=biases, qk_norm=True, head=_HEAD)


def write(config: ModelConfig) -> dict[str, Any]:
    return {**write_grouped(config), "attention_bias": has_biases(config), "use_sliding_window": False}
