"""The number of a network's parameters, counted on a network without memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from etude.model.block import Experts
from etude.model.config import ModelConfig
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
