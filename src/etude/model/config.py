"""`ModelConfig`, the description of a network by its parts: attention, mixture of experts, rotary positions.

It knows no family's names: `families` reads a description from a published config.json and writes it back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
    def groups(self) -> int:
        """Number of groups of heads that have keys and values of their own in the cache."""
        return 1

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
class GroupedShape:
    """Grouped-query attention: adjacent heads of queries share the keys and values of their group."""

    heads: int
    groups: int
    """Number of groups, each with a key and a value per token."""
    head: int
    """Dimensions of a head's query, key and value."""
    rope: int
    """Number of these dimensions, the first ones of queries and keys, that have rotary position encoding."""
    qk_norm: bool = False
    """Whether queries and keys are normed per head before they are rotated."""
    biases: frozenset[str] = frozenset()
    """The projections that have a bias: some of q, k, v and o."""

    @property
    def query(self) -> int:
        """Dimensions of a head's query and key."""
        return self.head

    @property
    def entry(self) -> int:
        """Numbers that the cache holds per token, layer and group: the key and the value."""
        return 2 * self.head

    def head_split(self, name: str) -> HeadSplit | None:
        """Return how the weight of this name is split by heads; None if it is no such projection."""
        splits = {
            "q_proj": HeadSplit(0, self.heads, (self.head,)),
            "k_proj": HeadSplit(0, self.groups, (self.head,)),
            "v_proj": HeadSplit(0, self.groups, (self.head,)),
            "o_proj": HeadSplit(1, self.heads, (self.head,)),
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
    balance_loss: float = 0.0
    """Coefficient of the auxiliary loss that evens the experts' load in pretraining, where no bias does."""


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
    attention: LatentShape | GroupedShape
    mixture: MixtureShape | None
    rope: Rope
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    mlp_bias: bool = False
    """Whether the projections of the dense feed-forward have biases."""
    num_nextn_predict_layers: int = 0
    """Number of MTP heads."""
    initializer_range: float = 0.02
    """Standard deviation of random initial weights."""
    embedding_scale: float = 1.0
    """Factor by which the embeddings are multiplied."""
    published: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The config.json from which this was read, so that settings that no network depends on are written again."""

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
        scaling, latent = self.rope.scaling, isinstance(self.attention, LatentShape)
        return (scaling.softmax_scale if latent and isinstance(scaling, Yarn) else 1.0) / math.sqrt(
            self.attention.query
        )

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Number of groups of heads that have entries of their own in the cache, and numbers per entry."""
        return self.attention.groups, self.attention.entry

    @property
    def heads_per_group(self) -> int:
        return self.attention.heads // self.attention.groups

    def mixture_of(self, layer: int) -> MixtureShape | None:
        """Return the mixture of a layer, None if it is dense. MTP heads are the layers after the trunk's last."""
        is_mixture = self.mixture is not None and (layer >= self.num_hidden_layers or layer in self.mixture.layers)
        return self.mixture if is_mixture else None

    def extended(self, factor: float, trained: int | None = None) -> ModelConfig:
        """Return this network for a context `factor` times as long as the `trained` one, that is, as its positions if
        None. It has at least that many positions then."""
        trained = trained or self.max_position_embeddings
        rope, positions = self.rope.extended(factor, trained), max(self.max_position_embeddings, int(trained * factor))
        if isinstance(rope.scaling, Yarn) and self.rope.scaling is None and isinstance(self.attention, GroupedShape):
            # Latent attention scales the scores, grouped attention the rotated dimensions, each as published.
            rope = replace(rope, scaling=replace(rope.scaling, mscale=0.0, mscale_all_dim=0.0))
        return replace(self, rope=rope, max_position_embeddings=positions)

    def head_split(self, name: str) -> HeadSplit | None:
        return self.attention.head_split(name)
