"""Published settings of Qwen3 with mixtures of experts."""

from __future__ import annotations

from typing import Any

from etude.model.config import MixtureShape, ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families.grouped import has_biases, read_grouped, write_grouped
from etude.model.families.published import Published

_EXPERTS = ("num_experts", "num_local_experts")
"""The published name of the number of experts, and the one that transformers 5 writes."""


def read(published: Published) -> ModelConfig:
    published.require("num_key_value_heads")
    biases = "qkvo" if published.data.get("attention_bias") else ""
    return read_grouped(published, "qwen3_moe", biases=biases, qk_norm=True, mixture=_mixture(published))


def write(config: ModelConfig) -> dict[str, Any]:
    mixture = config.mixture
    assert mixture is not None
    return {
        **write_grouped(config),
        "attention_bias": has_biases(config),
        "use_sliding_window": False,
        "num_experts": mixture.experts,
        "num_experts_per_tok": mixture.per_token,
        "moe_intermediate_size": mixture.width,
        "norm_topk_prob": mixture.normalise,
        "router_aux_loss_coef": mixture.balance_loss,
        "decoder_sparse_step": 1,
        "mlp_only_layers": sorted(set(range(config.num_hidden_layers)) - set(mixture.layers)),
    }


def _mixture(published: Published) -> MixtureShape:
    published.require("num_hidden_layers", "num_experts_per_tok", "moe_intermediate_size")
    data = published.data
    experts, per_token = published.number(*_EXPERTS, default=0), data["num_experts_per_tok"]
    if not 0 < per_token <= experts:
        raise UnsupportedCheckpoint(f"num_experts_per_tok is {per_token} of {experts} experts (num_experts)")
    every = published.number("decoder_sparse_step", default=1)
    dense = set(data.get("mlp_only_layers") or ())
    layers = range(every - 1, data["num_hidden_layers"], every) if every else ()
    return MixtureShape(
        layers=tuple(layer for layer in layers if layer not in dense),
        experts=experts,
        per_token=per_token,
        width=data["moe_intermediate_size"],
        scoring="softmax",
        selection_bias=False,
        normalise=bool(data.get("norm_topk_prob", False)),
        balance_loss=published.number("router_aux_loss_coef", default=0.001),
    )
