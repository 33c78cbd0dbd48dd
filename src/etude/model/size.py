"""How large a network is: its parameters, counted on a network without memory, and its arithmetic. And a small network
of the same proportions, for measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

import torch
from torch import nn

from etude.model.block import Experts
from etude.model.config import GroupedShape, LatentShape, ModelConfig
from etude.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Parameters:
    total: int
    """Number of trained parameters, MTP heads included."""
    active: int
    """Number of parameters that one token uses: all except those of MTP heads and of experts it is not routed to."""


@cache
def parameters_of(config: ModelConfig) -> Parameters:
    model = _without_memory(config)
    total = _numbers(model)
    return Parameters(total, total - _numbers(model.mtp) - _idle(model.layers, config))


def operations_per_token(config: ModelConfig, length: int) -> float:
    """Return the multiplications and additions of a forward and backward pass, per token of rows of `length` tokens."""
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return 6 * (parameters_of(config).active - looked_up + config.num_hidden_layers * _scores(config, length))


def operations_of_drafts(config: ModelConfig, length: int) -> float:
    """Return the same of the MTP heads, which learn the main head's distribution, without the trunk below them."""
    heads = _without_memory(config).mtp
    logits = len(heads) * config.vocab_size * config.hidden_size
    inside = _numbers(heads) - _idle(heads, config) + len(heads) * _scores(config, length)
    return 6 * (inside + logits) + 2 * logits  # the main head's logits, once more, have no gradient


@lru_cache(maxsize=1)
def _without_memory(config: ModelConfig) -> Transformer:
    """Return a network to count in. A plan asks for the same one two dozen times."""
    with torch.device("meta"):
        return Transformer(config)


def _scores(config: ModelConfig, length: int) -> float:
    """Return the multiplications per token of one layer's attention, without its projections."""
    shape = config.attention
    value = shape.value if isinstance(shape, LatentShape) else shape.head
    return shape.heads * (shape.query + value) * length / 2


def _numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _idle(layers: nn.Module, config: ModelConfig) -> int:
    """Return the number of parameters of the layers' experts that one token is not routed to."""
    if (mixture := config.mixture) is None:
        return 0
    routed = sum(_numbers(module) for module in layers.modules() if isinstance(module, Experts))
    return routed // mixture.experts * (mixture.experts - mixture.per_token)


def shrunk(config: ModelConfig, largest: int) -> ModelConfig:
    """Return the network itself if it has at most `largest` parameters. Else one of two layers (the first and the
    last), with as many experts as a token uses, 1,024 tokens, and widths divided by powers of two until it fits."""
    if parameters_of(config).total <= largest:
        return config
    divisor = 1
    while parameters_of(small := _divided(config, divisor)).total > largest:
        divisor *= 2
    return small


def _divided(config: ModelConfig, by: int) -> ModelConfig:
    shape, mixture = config.attention, config.mixture
    heads = max(1, shape.heads // by)
    attention: LatentShape | GroupedShape
    if isinstance(shape, LatentShape):
        q_rank = shape.q_rank and max(8, shape.q_rank // by)
        attention = replace(shape, heads=heads, q_rank=q_rank, kv_rank=max(8, shape.kv_rank // by))
    else:
        attention = replace(shape, heads=heads, groups=min(heads, max(1, shape.groups // by)))
    if mixture is not None:
        last = config.num_hidden_layers - 1
        mixture = replace(
            mixture,
            layers=tuple(new for new, old in enumerate((0, last)) if old in mixture.layers),
            experts=mixture.per_token,
            width=max(32, mixture.width // by),
            shared_width=max(32, mixture.shared_width // by) if mixture.shared_width else 0,
            groups=1,
            kept_groups=1,
        )
    return replace(
        config,
        vocab_size=1024,
        hidden_size=max(32, config.hidden_size // by),
        num_hidden_layers=2,
        intermediate_size=max(32, config.intermediate_size // by),
        attention=attention,
        mixture=mixture,
        num_nextn_predict_layers=0,
    )
