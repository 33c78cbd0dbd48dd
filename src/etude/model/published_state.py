"""A network's tensors under the names that its family's published checkpoints have."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from etude.model.config import ModelConfig
from etude.model.families import FAMILIES


def published_state(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a state dict by their published names: of each stack of experts one view per expert. Codes
    and scales of experts, which no family publishes, stay stacked."""
    names, found = FAMILIES[config.family].names, dict[str, Tensor]()
    for parameter, tensor in state.items():
        published = names.published(parameter, config)
        singles = names.of_experts(published, len(tensor) if tensor.ndim else 0)
        if singles is None:
            found[published] = tensor
        else:
            found |= zip(singles, tensor, strict=True)
    return found
