"""Mixtures of experts as DeepSeek-V3 published them: a sigmoid router with biases, groups of experts, shared expert."""

from __future__ import annotations

from typing import Any

from etude.model.config import MixtureShape, ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families.published import Published

REQUIRED = (
    "num_hidden_layers",
    "first_k_dense_replace",
    "moe_intermediate_size",
    "n_routed_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
)
"""Settings that `read_mixture` needs."""


def read_mixture(published: Published) -> MixtureShape:
    published.require(*REQUIRED)
    data = published.data
    experts, groups = data["n_routed_experts"], data["n_group"]
    if not groups or experts % groups or not 0 < data["topk_group"] <= groups:
        raise UnsupportedCheckpoint(f"n_group is {groups}, topk_group {data['topk_group']}, of {experts} experts")
    candidates = experts // groups * data["topk_group"]
    if not 0 < data["num_experts_per_tok"] <= candidates:
        raise UnsupportedCheckpoint(f"num_experts_per_tok is {data['num_experts_per_tok']} of {candidates} experts")
    return MixtureShape(
        layers=tuple(range(data["first_k_dense_replace"], data["num_hidden_layers"])),
        experts=experts,
        per_token=data["num_experts_per_tok"],
        width=data["moe_intermediate_size"],
        shared_width=published.number("n_shared_experts", default=0) * data["moe_intermediate_size"],
        groups=groups,
        kept_groups=data["topk_group"],
        normalise=data.get("norm_topk_prob", True),
        scale=data["routed_scaling_factor"],
    )


def write_mixture(config: ModelConfig) -> dict[str, Any]:
    mixture = config.mixture
    assert mixture is not None
    return {
        "first_k_dense_replace": config.num_hidden_layers - len(mixture.layers),
        "moe_intermediate_size": mixture.width,
        "n_routed_experts": mixture.experts,
        "n_shared_experts": mixture.shared_width // mixture.width,
        "num_experts_per_tok": mixture.per_token,
        "n_group": mixture.groups,
        "topk_group": mixture.kept_groups,
        "routed_scaling_factor": mixture.scale,
        "norm_topk_prob": mixture.normalise,
        "num_nextn_predict_layers": config.num_nextn_predict_layers,
    }


def read_heads(published: Published) -> int:
    """Return the number of MTP heads, by its published name or the one that transformers 5 gives it."""
    heads: int = published.number("num_nextn_predict_layers", "num_mtp_layers", default=0)
    return heads
