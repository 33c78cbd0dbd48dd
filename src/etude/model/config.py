"""`ModelConfig`, the description of a network by its parts: attention, mixture of experts, rotary positions.

It knows no family's names: `families` reads a description from a published config.json and writes it back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from etude.model.rope import Rope, Yarn


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """How the weight matrix of a projection is made of parts that each act as one matrix in the network."""

    axis: int
    """The axis along which heads follow one another: 0 for outputs, 1 for inputs."""
    heads: int
    parts: tuple[int, ...]
    """Widths of the parts of one head along that axis."""


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Multi-head latent attention: keys and values of all heads are linear in one latent per token."""

    heads: int
    q_rank: int | None
    """Width of the latent from which queries are computed; None computes them from the residual stream."""
    kv_rank: int
    """Width of the latent from which keys and values are computed."""
    nope: int
    """Dimensions of a head's query and key without position encoding."""
    rope: int
    """Dimensions of a head's query and key with rotary position encoding; this part of the key is shared by all
    heads."""
    value: int
    """Dimensions of a head's value."""

    @property
    def query(self) -> int:
        """Dimensions of a head's query and key."""
        return self.nope + self.rope

    @property
    def entry(self) -> int:
        """Numbers that the cache holds per token and layer: the latent and the rotary key."""
        return self.kv_rank + self.rope

    def head_split(self, name: str) -> HeadSplit | None:
        """Return how the weight of this name is split by heads; None if it is no such projection."""
        splits = {
            "q_proj": HeadSplit(0, self.heads, (self.query,)),
            "q_b_proj": HeadSplit(0, self.heads, (self.query,)),
            "kv_b_proj": HeadSplit(0, self.heads, (self.nope, self.value)),
            "o_proj": HeadSplit(1, self.heads, (self.value,)),
        }
        return splits.get(name.removesuffix(".weight").rpartition(".")[2])


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """A mixture of experts, the same in all its layers."""

    layers: tuple[int, ...]
    """Layers of the trunk that are mixtures; the others have a dense feed-forward. MTP heads always are mixtures."""
    experts: int
    """Number of routed experts per layer."""
    per_token: int
    """Number of routed experts that each token uses."""
    width: int
    """Inner width of one expert."""
    shared_width: int = 0
    """Inner width of the feed-forward that every token passes through besides; 0 means none."""
    groups: int = 1
    """Number of groups of experts; a token uses only experts of its `kept_groups` best groups."""
    kept_groups: int = 1
    scoring: Literal["sigmoid", "softmax"] = "sigmoid"
    """How the router turns its logits into scores."""
    selection_bias: bool = True
    """Whether a bias per expert, which `balance` moves, takes part in the choice of experts."""
    normalise: bool = True
    """Whether a token's gates are divided by their sum."""
    scale: float = 1.0
    """Factor by which the gates are multiplied, after that."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    family: str
    """The published family (families/) whose names checkpoints use."""
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    """Number of layers of the trunk, MTP heads not included."""
    intermediate_size: int
    """Inner width of the dense feed-forward."""
    attention: LatentShape
    mixture: MixtureShape | None
    rope: Rope
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    num_nextn_predict_layers: int = 0
    """Number of MTP heads."""
    initializer_range: float = 0.02
    """Standard deviation of random initial weights."""
    embedding_scale: float = 1.0
    """Factor by which the embeddings are multiplied."""

    @property
    def moe_layers(self) -> int:
        return len(self.mixture.layers) if self.mixture else 0

    @property
    def n_routed_experts(self) -> int:
        return self.mixture.experts if self.mixture else 0

    @property
    def num_experts_per_tok(self) -> int:
        return self.mixture.per_token if self.mixture else 0

    @property
    def softmax_scale(self) -> float:
        scaling = self.rope.scaling
        return (scaling.softmax_scale if isinstance(scaling, Yarn) else 1.0) / math.sqrt(self.attention.query)

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Number of groups of heads that have entries of their own in the cache, and numbers per entry."""
        return 1, self.attention.entry

    @property
    def heads_per_group(self) -> int:
        return self.attention.heads

    def mixture_of(self, layer: int) -> MixtureShape | None:
        """Return the mixture of a layer, None if it is dense. MTP heads are the layers after the trunk's last."""
        is_mixture = self.mixture is not None and (layer >= self.num_hidden_layers or layer in self.mixture.layers)
        return self.mixture if is_mixture else None

    def head_split(self, name: str) -> HeadSplit | None:
        return self.attention.head_split(name)
