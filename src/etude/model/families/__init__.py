"""The published families of networks.

A family reads a published config.json as a `ModelConfig`, writes it back, and knows the names of the network's tensors
in checkpoints. It has no code of the network itself: that is built from the parts that `ModelConfig` describes.

Invariant: `read_config(write_config(config)) == config`, and a setting that is not implemented raises
UnsupportedCheckpoint, which names it. Two of our own settings are stored in config.json under the key "etude": the
embedding scale, and whether the embedding was tied. The tensors do not show these, because writing folds the
scale into the written embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from etude.model.config import ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families import deepseek_v3, glm4_moe, llama, qwen2, qwen3, qwen3_moe
from etude.model.families.family import Family
from etude.model.families.published import Published

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY for module in (deepseek_v3, glm4_moe, llama, qwen2, qwen3, qwen3_moe)
}
_OURS = ("embedding_scale", "tie_word_embeddings")


def read_config(data: Mapping[str, Any]) -> ModelConfig:
    """Read a published config.json. Raises UnsupportedCheckpoint if a setting is missing or not implemented."""
    kind = data.get("model_type")
    families = {name: family for family in FAMILIES.values() for name in family.model_types}
    if kind not in families:
        raise UnsupportedCheckpoint(f"model_type is {kind!r}; known are {', '.join(sorted(families))}")
    if data.get("quantization_config"):
        raise UnsupportedCheckpoint("config.json has a quantization_config: load the quantised weights with load_hf")
    ours = {name: value for name, value in (data.get("etude") or {}).items() if name in _OURS}
    try:
        config = families[kind].read(Published(data))
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnsupportedCheckpoint(f"config.json is damaged: {str(error)[:100]}") from error
    return replace(config, published=dict(data), **ours)


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Return a config.json in the published format. Of one that was read, only the settings change that now say
    something else. With an embedding scale other than 1, it describes an untied network, because the scale is folded
    into the written embedding."""
    family = FAMILIES[config.family]
    data = {"architectures": [family.architecture], "model_type": family.model_types[0], **family.write(config)}
    if config.published:
        data = _changed(config, family)
    if config.embedding_scale != 1:
        data["etude"] = {name: getattr(config, name) for name in _OURS}
        data["tie_word_embeddings"] = False
    return data


def _changed(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the config.json that was read, with the settings in which the network no longer is as it says."""
    before, now = family.write(read_config(config.published)), family.write(config)
    changed = {name: value for name, value in now.items() if value != before[name]}
    data = dict(config.published)
    data.pop("etude", None)
    if changed.keys() & {"rope_theta", "rope_scaling"} and data.pop("rope_parameters", None) is not None:
        changed |= {name: now[name] for name in ("rope_theta", "rope_scaling", "partial_rotary_factor") if name in now}
    return data | changed
