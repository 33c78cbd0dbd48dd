"""`Family`, what the package knows about one published family of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from etude.model.config import ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families.names import TensorNames
from etude.model.families.published import Published

TIED = "tie_word_embeddings"


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    model_types: tuple[str, ...]
    """Values of config.json's `model_type` that mean this family. The first one is written."""
    architecture: str
    """The class in config.json's `architectures`."""
    read: Callable[[Published], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]
    """Returns the published settings of a network: `read` of them gives the same description, but for the embedding
    scale."""
    names: TensorNames
    section: str = ""
    """The key of config.json that describes the network, where the network is part of a larger model."""

    def described(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings of the network in a config.json. Whether the embedding is tied is said beside them."""
        found = data.get(self.section) if self.section else data
        if not isinstance(found, Mapping):
            raise UnsupportedCheckpoint(f"config.json lacks {self.section}")
        return {**found, **{name: data[name] for name in (TIED,) if name in data}}
