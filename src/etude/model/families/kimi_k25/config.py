"""Published settings of Kimi-K2.5's text part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from etude.model.config import ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families import deepseek_v3
from etude.model.families.published import Published


def read(published: Published) -> ModelConfig:
    known = deepseek_v3.FAMILY.model_types
    if (kind := published.data.get("model_type", known[0])) not in known:
        raise UnsupportedCheckpoint(f"the model_type of text_config is {kind!r}; known are {', '.join(known)}")
    return replace(deepseek_v3.FAMILY.read(published), family="kimi_k25")


def write(config: ModelConfig) -> dict[str, Any]:
    return deepseek_v3.FAMILY.write(config)
