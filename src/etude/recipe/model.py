"""Recipe section for the network: a published checkpoint, or a new MoE transformer like DeepSeek-V3 and Kimi-K2.

The fields that describe a new network are named as in these models' published config.json.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from etude.recipe.section import Section

_FROM = ("from_", "weights", "mtp_heads")


class ModelRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset(_FROM)
    from_: str = Field("", alias="from")
    """Where the network comes from: a folder with a Hugging Face checkpoint, a run (its latest model), or the model
    folder of one of its stages. If empty, the run begins with a new network, which the other fields describe."""
    weights: Literal["stored", "random"] = "stored"
    """With `from`: whether the run begins with the folder's weights and tokenizer ("stored"), or takes only the shape
    of the network from its config.json, and trains a tokenizer ("random")."""
    mtp_heads: int | None = Field(None, ge=0, le=8)
    """With `from`: number of multi-token-prediction (MTP) heads. If unset, the run has those of the folder. Fewer drop
    the last ones; more add new ones, also to families that publish none, for the stage "mtp" to train."""
    hidden_size: int = Field(128, ge=8)
    """Width of the residual stream."""
    num_hidden_layers: int = Field(4, ge=1)
    """Number of transformer layers, not counting the MTP heads."""
    first_k_dense_replace: int = Field(1, ge=0)
    """Number of layers, from the first on, with a dense feed-forward; all later layers are mixtures of experts."""
    intermediate_size: int = Field(352, ge=8)
    """Width of the dense feed-forward."""
    moe_intermediate_size: int = Field(64, ge=8)
    """Width of one expert."""
    n_routed_experts: int = Field(8, ge=1)
    """Number of routed experts per layer, from which the router chooses."""
    n_shared_experts: int = Field(2, ge=0)
    """Width of the shared expert, a single feed-forward, in multiples of `moe_intermediate_size`."""
    num_experts_per_tok: int = Field(2, ge=1)
    """Number of routed experts that each token uses."""
    n_group: int = Field(1, ge=1)
    """Number of groups of routed experts; a token uses only experts of its `topk_group` best groups."""
    topk_group: int = Field(1, ge=1)
    """Number of expert groups that one token may use."""
    routed_scaling_factor: float = 1.0
    """Factor by which the sum of the routed experts' outputs is multiplied."""
    num_attention_heads: int = Field(4, ge=1)
    """Number of attention heads per layer."""
    q_lora_rank: int | None = None
    """Width of the latent from which queries are computed. If unset, queries are computed from the residual stream
    directly."""
    kv_lora_rank: int = Field(48, ge=8)
    """Width of the latent from which keys and values are computed; the KV cache holds this latent."""
    qk_nope_head_dim: int = Field(32, ge=2)
    """Number of dimensions of a head's query and key without position encoding."""
    qk_rope_head_dim: int = Field(16, ge=2)
    """Number of dimensions of a head's query and key with rotary position encoding; this part of the key is shared by
    all heads."""
    v_head_dim: int = Field(32, ge=2)
    """Number of dimensions of a head's value."""
    rope_theta: float = Field(100.0, gt=1)
    """Base of the rotary frequencies."""
    max_position_embeddings: int = Field(1024, ge=16)
    """Maximum sequence length in tokens, after the long-context extension."""
    rms_norm_eps: float = 1e-6
    """Epsilon that every RMS norm adds to the mean square."""
    tie_word_embeddings: bool = True
    """Whether the output layer shares the input embeddings."""
    num_nextn_predict_layers: int = Field(1, ge=0)
    """Number of MTP heads of a new network."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    embedding_scale: float = 1.0
    """Factor by which the embeddings are multiplied: 1 in the published models; small models train faster with
    sqrt(hidden_size)."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelRecipe:
        given = [name for name in type(self).model_fields if name not in _FROM and name in self.model_fields_set]
        changed = [name for name in given if getattr(self, name) != type(self).model_fields[name].default]
        if self.from_ and changed:
            raise ValueError(f"{changed[0]} describes a new network, but from = {self.from_!r} names one: remove one")
        if self.mtp_heads is not None and not self.from_:
            raise ValueError("mtp_heads goes with from; a new network has num_nextn_predict_layers heads")
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ValueError("num_experts_per_tok must not exceed n_routed_experts")
        if self.first_k_dense_replace > self.num_hidden_layers:
            raise ValueError("first_k_dense_replace must not exceed num_hidden_layers")
        if self.n_routed_experts % self.n_group:
            raise ValueError("n_group must divide n_routed_experts")
        if self.topk_group > self.n_group:
            raise ValueError("topk_group must not exceed n_group")
        if self.num_experts_per_tok > self.topk_group * (self.n_routed_experts // self.n_group):
            raise ValueError("num_experts_per_tok must not exceed the experts of topk_group groups")
        if self.n_group > 1 and self.n_routed_experts // self.n_group < 2:
            raise ValueError("a group needs at least two experts")
        if self.qk_rope_head_dim % 2:
            raise ValueError("qk_rope_head_dim must be even")
        return self
