"""Published settings of Qwen2."""

from __future__ import annotations

from typing import Any

from etude.model.config import ModelConfig
from etude.model.families.grouped import read_grouped, write_grouped
from etude.model.families.published import Published


def read(published: Published) -> ModelConfig:
    published.require("num_key_value_heads")
    return read_grouped(published, "qwen2", biases="qkv")


def write(config: ModelConfig) -> dict[str, Any]:
    return {**write_grouped(config), "use_sliding_window": False}
