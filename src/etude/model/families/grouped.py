"""What families with grouped-query attention have in common: the settings as Llama named them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from etude.model.config import GroupedShape, MixtureShape, ModelConfig
from etude.model.errors import UnsupportedCheckpoint
from etude.model.families.published import Published, write_rope

_FIXED: dict[str, Any] = {"attention_dropout": 0.0, "hidden_act": "silu"}
"""Settings with only one supported value."""
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)
_THETA = 10_000.0
"""Base of the rotary frequencies where config.json names none."""


def read_grouped(
    published: Published,
    family: str,
    *,
    biases: Iterable[str],
    qk_norm: bool = False,
    head: int | None = None,
    mlp_bias: bool = False,
    mixture: MixtureShape | None = None,
    rotated: float | None = None,
) -> ModelConfig:
    """Read the settings that the families share; the arguments are what each reads by itself. `head` is the width of a
    head where config.json names none: None divides the width of the network among the heads. `rotated` is the share of
    a head with rotary position encoding where config.json names none: None for families that always rotate all."""
    published.require_values(_FIXED)
    published.require(*_REQUIRED)
    data = published.data
    heads = data["num_attention_heads"]
    groups = published.number("num_key_value_heads", default=heads)
    if not groups or heads % groups:
        raise UnsupportedCheckpoint(f"num_attention_heads is {heads}, no multiple of num_key_value_heads, {groups}")
    head = published.number("head_dim", default=data["hidden_size"] // heads if head is None else head)
    if not head or head % 2:
        raise UnsupportedCheckpoint(f"head_dim is {head}; rotary position encoding needs an even number")
    rope = _rotary_width(published, head, rotated)
    _require_no_windows(published)
    return ModelConfig(
        family=family,
        vocab_size=data["vocab_size"],
        hidden_size=data["hidden_size"],
        num_hidden_layers=data["num_hidden_layers"],
        intermediate_size=data["intermediate_size"],
        attention=GroupedShape(heads, groups, head, rope=rope, qk_norm=qk_norm, biases=frozenset(biases)),
        mixture=mixture,
        rope=published.rope(interleaved=False, theta=_THETA),
        max_position_embeddings=data["max_position_embeddings"],
        rms_norm_eps=data["rms_norm_eps"],
        tie_word_embeddings=data.get("tie_word_embeddings", False),
        mlp_bias=mlp_bias,
        initializer_range=published.number("initializer_range", default=0.02),
    )


def write_grouped(config: ModelConfig) -> dict[str, Any]:
    """Return the settings that `read_grouped` reads by itself."""
    shape = config.attention
    assert isinstance(shape, GroupedShape)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.groups,
        "head_dim": shape.head,
        **write_rope(config.rope),
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        **_FIXED,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def has_biases(config: ModelConfig) -> bool:
    """Whether attention's projections have biases, for families where one setting says so of all."""
    return isinstance(config.attention, GroupedShape) and bool(config.attention.biases)


def _rotary_width(published: Published, head: int, usual: float | None) -> int:
    """Return the number of a head's dimensions that are rotated, by the share that config.json names."""
    rope = published.data.get("rope_parameters") or {}
    share = rope.get("partial_rotary_factor", published.data.get("partial_rotary_factor"))
    if usual is None:
        if share not in (None, 1):
            raise UnsupportedCheckpoint(f"partial_rotary_factor is {share!r}; only 1.0 is implemented in this family")
        return head
    width = int(head * float(usual if share is None else share))
    if not 0 < width <= head or width % 2:
        raise UnsupportedCheckpoint(f"partial_rotary_factor is {share!r}: of {head} dimensions it rotates {width}")
    return width


def _require_no_windows(published: Published) -> None:
    kinds = published.data.get("layer_types")
    windows = any(kind != "full_attention" for kind in kinds) if kinds else published.data.get("use_sliding_window")
    if windows:
        name = "layer_types" if kinds else "use_sliding_window"
        raise UnsupportedCheckpoint(f"{name} asks for sliding windows, which are not implemented")
