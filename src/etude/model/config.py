"""`ModelConfig`, the shape of a network: the fields of the recipe's `[model]` section, the vocabulary size and YaRN.

Invariant: `from_hf(to_hf(config)) == config`, and a setting that is not implemented raises UnsupportedCheckpoint, which
names it. Field names are those of the published `config.json`. Two of our own settings are stored there under the key
"etude": the embedding scale, and whether the embedding was tied. The tensors do not show these, because checkpoint.py
folds the scale into the written embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from etude.model.errors import UnsupportedCheckpoint

if TYPE_CHECKING:  # the network itself must run with torch alone, as `make gpu` needs
    from etude.recipe.model import ModelRecipe

LATENT_NORM_EPS = 1e-6
"""Epsilon of the norms inside attention. The published code uses this value there and ignores rms_norm_eps."""


@dataclass(frozen=True, slots=True)
class Yarn:
    """Settings of YaRN, which rescales the rotary frequencies to extend the context. The defaults are as published."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0

    @property
    def rotation_scale(self) -> float:
        """Factor by which YaRN multiplies the rotary cosines and sines."""
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    @property
    def softmax_scale(self) -> float:
        """Factor by which YaRN multiplies the attention scores."""
        return self._magnitude(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _magnitude(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


@dataclass(frozen=True, slots=True)
class Parameters:
    total: int
    """Number of trained parameters, MTP heads included."""
    active: int
    """Number of parameters that one token uses: all except those of MTP heads and of experts it is not routed to."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    first_k_dense_replace: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_theta: float
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    num_nextn_predict_layers: int
    initializer_range: float
    embedding_scale: float
    yarn: Yarn | None = None

    @classmethod
    def from_recipe(cls, recipe: ModelRecipe, vocab_size: int, yarn: Yarn | None = None) -> ModelConfig:
        return cls(vocab_size=vocab_size, yarn=yarn, **recipe.model_dump())

    @property
    def moe_layers(self) -> int:
        return max(0, self.num_hidden_layers - self.first_k_dense_replace)

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_width(self) -> int:
        """Number of values that the cache holds per token and layer: the latent and the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Number of groups of heads that have entries of their own in the cache, and numbers per entry."""
        return 1, self.latent_width

    @property
    def heads_per_group(self) -> int:
        return self.num_attention_heads

    @property
    def softmax_scale(self) -> float:
        return (self.yarn.softmax_scale if self.yarn else 1.0) / math.sqrt(self.qk_head_dim)

    def is_moe(self, layer: int) -> bool:
        return layer >= self.first_k_dense_replace

    def parameter_count(self) -> Parameters:
        d, heads = self.hidden_size, self.num_attention_heads
        if self.q_lora_rank is None:
            queries = d * heads * self.qk_head_dim
        else:
            queries = self.q_lora_rank * (d + 1 + heads * self.qk_head_dim)
        latents = d * self.latent_width + self.kv_lora_rank
        values = self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        frame = queries + latents + values + heads * self.v_head_dim * d + 2 * d
        expert = 3 * d * self.moe_intermediate_size
        always = expert * self.n_shared_experts + d * self.n_routed_experts
        dense_layers = self.num_hidden_layers - self.moe_layers
        words = self.vocab_size * d * (1 if self.tie_word_embeddings else 2) + d
        common = words + self.num_hidden_layers * frame + dense_layers * 3 * d * self.intermediate_size
        active = common + self.moe_layers * (always + expert * self.num_experts_per_tok)
        total = common + self.moe_layers * (always + expert * self.n_routed_experts)
        head = frame + always + expert * self.n_routed_experts + 2 * d * d + 3 * d
        return Parameters(total + self.num_nextn_predict_layers * head, active)

    def to_hf(self) -> dict[str, Any]:
        """Return a config.json in the published format. With an embedding scale other than 1, it describes an untied
        network, because the scale is folded into the written embedding."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("yarn", "embedding_scale")}
        folded = self.embedding_scale != 1
        out: dict[str, Any] = {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            **plain,
            "tie_word_embeddings": self.tie_word_embeddings and not folded,
            **_FIXED,
            "num_key_value_heads": self.num_attention_heads,
            "rope_scaling": None,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        if self.yarn is not None:
            out["rope_scaling"] = {"type": "yarn", **{f.name: getattr(self.yarn, f.name) for f in fields(self.yarn)}}
        if folded:
            out["etude"] = {"embedding_scale": self.embedding_scale, "tie_word_embeddings": self.tie_word_embeddings}
        return out

    @classmethod
    def from_hf(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Read a published config.json. Raises UnsupportedCheckpoint if a setting is missing or not implemented."""
        _refuse_unknown_variants(data)
        rope = dict(data.get("rope_parameters") or data.get("rope_scaling") or {})
        ours = data.get("etude") or {}
        values: dict[str, Any] = {
            **data,
            "rope_theta": rope.get("rope_theta", data.get("rope_theta")),
            "num_nextn_predict_layers": data.get("num_nextn_predict_layers", data.get("num_mtp_layers", 0)),
            "q_lora_rank": data.get("q_lora_rank"),
            "initializer_range": data.get("initializer_range", 0.02),
            "tie_word_embeddings": ours.get("tie_word_embeddings", data.get("tie_word_embeddings", False)),
            "embedding_scale": ours.get("embedding_scale", 1.0),
            "yarn": _read_yarn(rope),
        }
        values["n_shared_experts"] = values.get("n_shared_experts") or 0
        missing = [f.name for f in fields(cls) if f.name != "q_lora_rank" and values.get(f.name, f) is f]
        missing += ["rope_theta"] if values["rope_theta"] is None else []
        if missing:
            raise UnsupportedCheckpoint(f"config.json lacks {', '.join(missing)}")
        return cls(**{f.name: values[f.name] for f in fields(cls)})


_FIXED: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "rope_interleave": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
"""Published settings with only one supported value. A checkpoint with another value raises UnsupportedCheckpoint."""


def _refuse_unknown_variants(data: Mapping[str, Any]) -> None:
    kind = data.get("model_type")
    if kind not in ("deepseek_v3", "kimi_k2"):
        raise UnsupportedCheckpoint(f"model_type is {kind!r}; expected 'deepseek_v3' or 'kimi_k2'")
    if data.get("quantization_config"):
        raise UnsupportedCheckpoint("config.json has a quantization_config: load the quantised weights with load_hf")
    for name, expected in _FIXED.items():
        if data.get(name, expected) != expected:
            raise UnsupportedCheckpoint(f"{name} is {data[name]!r}; only {expected!r} is implemented")
    if data.get("num_key_value_heads") not in (None, data.get("num_attention_heads")):
        raise UnsupportedCheckpoint("num_key_value_heads must equal num_attention_heads under latent attention")


def _read_yarn(rope: Mapping[str, Any]) -> Yarn | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "yarn":
        raise UnsupportedCheckpoint(f"rope scaling {kind!r} is not implemented; expected 'yarn' or none")
    for name in ("attention_factor", "truncate"):
        if rope.get(name, True) not in (None, True):
            raise UnsupportedCheckpoint(f"rope scaling with {name} = {rope[name]!r} is not implemented")
    try:
        return Yarn(
            factor=float(rope["factor"]),
            original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
            beta_fast=float(rope.get("beta_fast") or 32),
            beta_slow=float(rope.get("beta_slow") or 1),
            mscale=float(rope.get("mscale") or 0),
            mscale_all_dim=float(rope.get("mscale_all_dim") or 0),
        )
    except KeyError as missing:
        raise UnsupportedCheckpoint(f"rope scaling lacks {missing}") from missing
