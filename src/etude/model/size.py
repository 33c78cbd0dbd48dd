"""How large a network is: its parameters, counted on a network without memory, and its arithmetic. And a small network
of the same proportions, for measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from etude.model.block import Experts
from etude.model.config import GroupedShape, LatentShape, ModelConfig
from etude.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Parameters:
    total: int
    """Number of trained parameters, MTP heads included."""
    active: int
    """Number of parameters that one token uses: all except those of MTP heads and of experts it is not routed to."""


def parameters_of(config: ModelConfig) -> Parameters:
    with torch.device("meta"):
        model = Transformer(config)
    routed = sum(
        parameter.numel()
        for module in model.layers.modules()
        if isinstance(module, Experts)
        for parameter in module.parameters()
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    idle = sum(parameter.numel() for parameter in model.mtp.parameters())
    if config.mixture is not None:
        idle += routed // config.mixture.experts * (config.mixture.experts - config.mixture.per_token)
    return Parameters(total, total - idle)


def operations_per_token(config: ModelConfig, length: int) -> float:
    """Return the multiplications and additions of a forward and backward pass, per token of rows of `length` tokens."""
    width, shape = config.hidden_size, config.attention
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * width
    value = shape.value if isinstance(shape, LatentShape) else shape.head
    scores = config.num_hidden_layers * shape.heads * (shape.query + value) * length / 2
    return 6 * (parameters_of(config).active - looked_up + scores)


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
