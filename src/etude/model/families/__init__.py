"""The published families of networks.

A family reads a published config.json as a `ModelConfig`, writes it back, and knows the names of the network's tensors
in checkpoints. It has no code of the network itself: that is built from the parts that `ModelConfig` describes.

Invariant: `read_config(write_config(config)) == config`, and a setting that is not implemented raises
UnsupportedCheckpoint, which names it. Three of our own settings are stored in config.json under the key "etude". The
number of MTP heads stands there for families that publish none. The embedding scale, and whether the embedding was
tied, do because the tensors do not show these: writing folds the scale into the written embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from etude.model.config import ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families import deepseek_v3, glm4_moe, kimi_k25, llama, qwen2, qwen3, qwen3_moe
from etude.model.families.family import TIED, Family
from etude.model.families.published import Published

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY for module in (deepseek_v3, glm4_moe, kimi_k25, llama, qwen2, qwen3, qwen3_moe)
}
_OURS = {"embedding_scale": "embedding_scale", "tie_word_embeddings": TIED, "mtp_heads": "num_nextn_predict_layers"}
"""Our own settings in config.json, and the fields of ModelConfig that they are."""
_MOST_HEADS = 64
_QUANTISED = "quantization_config"


def read_config(data: Mapping[str, Any]) -> ModelConfig:
    """Read a published config.json. Raises UnsupportedCheckpoint if a setting is missing or not implemented."""
    family = _family_of(data)
    if data.get(_QUANTISED):
        raise UnsupportedCheckpoint("config.json has a quantization_config: load the quantised weights with load_hf")
    try:
        ours = {_OURS[name]: value for name, value in (data.get("etude") or {}).items() if name in _OURS}
        config = replace(family.read(Published(family.described(data))), published=dict(data), **ours)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnsupportedCheckpoint(f"config.json is damaged: {str(error)[:100]}") from error
    heads = config.num_nextn_predict_layers
    if type(heads) is not int or not 0 <= heads <= _MOST_HEADS:
        raise UnsupportedCheckpoint(f"the number of MTP heads is {str(heads)[:40]!r}; expected 0 to {_MOST_HEADS}")
    return config


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Return a config.json in the published format. Of one that was read, only the settings change that now say
    something else. With an embedding scale other than 1, it describes an untied network, because the scale is folded
    into the written embedding."""
    family = FAMILIES[config.family]
    data = _changed(config, family) if config.published else _new(config, family)
    ours = {"mtp_heads"} if config.num_nextn_predict_layers and not family.names.publishes_heads else set()
    if config.embedding_scale != 1:
        ours |= {"embedding_scale", "tie_word_embeddings"}
        data[TIED] = False
    if ours:
        data["etude"] = {name: getattr(config, field) for name, field in _OURS.items() if name in ours}
    return data


def without_quantisation(data: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a config.json without its quantization_config, and that. Where the network is part of a larger model, it
    may stand among the network's settings."""
    rest = dict(data)
    found = rest.pop(_QUANTISED, None)
    section = next((one.section for one in FAMILIES.values() if data.get("model_type") in one.model_types), "")
    if section and isinstance(inner := rest.get(section), Mapping) and _QUANTISED in inner:
        rest[section] = {name: value for name, value in inner.items() if name != _QUANTISED}
        found = found or inner[_QUANTISED]
    return rest, found


def _family_of(data: Mapping[str, Any]) -> Family:
    kind = data.get("model_type")
    families = {name: family for family in FAMILIES.values() for name in family.model_types}
    if kind not in families:
        raise UnsupportedCheckpoint(f"model_type is {kind!r}; known are {', '.join(sorted(families))}")
    return families[kind]


def _new(config: ModelConfig, family: Family) -> dict[str, Any]:
    data: dict[str, Any] = {"architectures": [family.architecture], "model_type": family.model_types[0]}
    settings = family.write(config)
    return data | ({family.section: settings, TIED: settings[TIED]} if family.section else settings)


def _changed(config: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the config.json that was read, with the settings in which the network no longer is as it says."""
    before, now = family.write(read_config(config.published)), family.write(config)
    changed = {name: value for name, value in now.items() if value != before[name]}
    data = dict(config.published)
    data.pop("etude", None)
    if family.section and TIED in changed:
        data[TIED] = changed[TIED]
    described = dict(data[family.section]) if family.section else data
    if changed.keys() & {"rope_theta", "rope_scaling"} and described.pop("rope_parameters", None) is not None:
        changed |= {name: now[name] for name in ("rope_theta", "rope_scaling", "partial_rotary_factor") if name in now}
    described |= changed
    return data | ({family.section: described} if family.section else described)
