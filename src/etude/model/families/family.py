"""`Family`, what the package knows about one published family of networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.model.config import ModelConfig
from etude.model.families.names import TensorNames
from etude.model.families.published import Published


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
