"""Where each tensor of a published checkpoint belongs in the network: reading, writing and the survey go by this."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from etude.model.config import ModelConfig
from etude.model.families import FAMILIES
from etude.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Slot:
    parameter: str
    """Name of a tensor in the network's state dict."""
    expert: int | None
    """Index of the routed expert within that tensor; None for the whole tensor."""
    shape: tuple[int, ...]


def slots_of(model: Transformer) -> dict[str, Slot]:
    """Return the place of every stored tensor by its published name, in the order of the network's layers."""
    names, slots = FAMILIES[model.config.family].names, dict[str, Slot]()
    for parameter, tensor in model.state_dict().items():
        published = names.published(parameter, model.config)
        singles = names.of_experts(published, len(tensor))
        if singles is None:
            slots[published] = Slot(parameter, None, tuple(tensor.shape))
        else:
            slots |= {single: Slot(parameter, i, tuple(tensor.shape[1:])) for i, single in enumerate(singles)}
    return slots


def without_memory(config: ModelConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config)
