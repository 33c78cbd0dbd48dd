"""Tiny published config.json files of each family, over every setting that the family reads."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_ROPES: list[dict[str, Any]] = [
    {"rope_theta": 100.0},
    {"rope_theta": 5000.0, "rope_scaling": None},
    {"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
    {"rope_theta": 100.0, "rope_scaling": _YARN},
    {"rope_theta": 100.0, "rope_scaling": _YARN | {"mscale": 0.7, "mscale_all_dim": 0.3}},
    {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
    {"rope_parameters": {"rope_theta": 300.0, **_YARN, "beta_fast": 16.0, "attention_factor": 1.3, "truncate": False}},
    {
        "rope_parameters": {
            "rope_theta": 100.0,
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    },
    {},
]
_FLAG = st.booleans()
_SIZES: dict[str, st.SearchStrategy[Any]] = {
    "vocab_size": st.just(61),
    "hidden_size": st.just(48),
    "num_hidden_layers": st.integers(1, 3),
    "intermediate_size": st.sampled_from([40, 64]),
    "num_attention_heads": st.just(6),
    "max_position_embeddings": st.just(128),
    "rms_norm_eps": st.sampled_from([1e-6, 1e-2]),
}
_GROUPS: dict[str, st.SearchStrategy[Any]] = {"num_key_value_heads": st.sampled_from([1, 2, 3, 6])}
_OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "head_dim": st.sampled_from([6, 16]),
    "tie_word_embeddings": _FLAG,
    "hidden_act": st.just("silu"),
    "attention_dropout": st.just(0.0),
    "initializer_range": st.just(0.02),
    "use_sliding_window": st.just(False),
}
_ATTENTION_BIAS = {"attention_bias": _FLAG}
_MIXTURE: dict[str, st.SearchStrategy[Any]] = {
    "num_experts_per_tok": st.integers(1, 3),
    "moe_intermediate_size": st.sampled_from([8, 24]),
}
_MIXTURE_OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "norm_topk_prob": _FLAG,
    "mlp_only_layers": st.lists(st.integers(0, 2), max_size=2, unique=True),
    "decoder_sparse_step": st.integers(1, 2),
    "router_aux_loss_coef": st.sampled_from([0.0, 0.01]),
}
_BIASED: dict[str, st.SearchStrategy[Any]] = {
    "first_k_dense_replace": st.integers(0, 3),
    "n_shared_experts": st.integers(1, 2),
    "routed_scaling_factor": st.sampled_from([1.0, 2.5]),
    "num_nextn_predict_layers": st.just(0),
}
_LATENT: dict[str, st.SearchStrategy[Any]] = {
    "num_key_value_heads": st.just(6),
    "q_lora_rank": st.sampled_from([None, 20]),
    "kv_lora_rank": st.just(24),
    "qk_nope_head_dim": st.sampled_from([8, 10]),
    "qk_rope_head_dim": st.sampled_from([4, 8]),
    "v_head_dim": st.sampled_from([8, 12]),
}
_LATENT_OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "norm_topk_prob": _FLAG,
    "rope_interleave": _FLAG,
    "attention_bias": st.just(False),
    "moe_layer_freq": st.just(1),
    "scoring_func": st.just("sigmoid"),
    "topk_method": st.just("noaux_tc"),
    **{name: _OPTIONAL[name] for name in _OPTIONAL if name not in ("head_dim", "use_sliding_window")},
}
_PARTIAL: dict[str, st.SearchStrategy[Any]] = {
    "head_dim": st.sampled_from([8, 16]),
    "use_qk_norm": _FLAG,
    "norm_topk_prob": _FLAG,
    "partial_rotary_factor": st.sampled_from([0.25, 0.5, 1.0]),
}
_FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepseek_v3": (_SIZES | _MIXTURE | _BIASED | _LATENT, _LATENT_OPTIONAL),
    "glm4_moe": (_SIZES | _GROUPS | _MIXTURE | _BIASED, _OPTIONAL | _ATTENTION_BIAS | _PARTIAL),
    "llama": (_SIZES, _GROUPS | _OPTIONAL | _ATTENTION_BIAS | {"mlp_bias": _FLAG, "pretraining_tp": st.just(1)}),
    "qwen2": (_SIZES | _GROUPS, _OPTIONAL),
    "qwen3": (_SIZES | _GROUPS, _OPTIONAL | _ATTENTION_BIAS),
    "qwen3_moe": (_SIZES | _GROUPS | _MIXTURE, _OPTIONAL | _ATTENTION_BIAS | _MIXTURE_OPTIONAL),
}
_VISION = {
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "hidden_size": 24,
    "intermediate_size": 16,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
    "patch_size": 2,
}
NAMES = tuple(_FAMILIES)
_DRAWN_TOGETHER = {"n_routed_experts", "n_group", "topk_group", "num_experts", "num_local_experts"} | {
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
}
_REFUSED = {"layer_types", "partial_rotary_factor", "num_mtp_layers"}
"""Settings of which any value of note is refused, as tests/model/test_config.py asks, and another name for the number
of MTP heads."""


def settings_of(family: str) -> set[str]:
    required, optional = _FAMILIES[family]
    return {*required, *optional, *_DRAWN_TOGETHER, *_REFUSED}


def configs(family: str) -> st.SearchStrategy[dict[str, Any]]:
    if family == "kimi_k25":
        return st.builds(kimi_k25, _configs("deepseek_v3"), _FLAG)
    return _configs(family)


@st.composite
def _configs(draw: st.DrawFn, family: str) -> dict[str, Any]:
    required, optional = _FAMILIES[family]
    data = draw(st.fixed_dictionaries(required, optional=optional))
    data |= deepcopy(draw(st.sampled_from(_ROPES if family != "deepseek_v3" else _ROPES[:-1])))
    if family == "glm4_moe" and "rope_parameters" in data and draw(_FLAG):
        data["rope_parameters"]["partial_rotary_factor"] = 0.25
    if "first_k_dense_replace" in data:
        groups = draw(st.sampled_from([1, 2]))
        data |= {"n_routed_experts": 6, "n_group": groups, "topk_group": draw(st.integers(1, groups))}
    elif "num_experts_per_tok" in data:
        name = draw(st.sampled_from(["num_experts", "num_local_experts"]))
        data[name] = draw(st.integers(data["num_experts_per_tok"], 6))
    return {"model_type": family, **data}


def kimi_k25(text: dict[str, Any], tied: bool = False) -> dict[str, Any]:
    """The config.json of a Kimi-K2.5 with this text part."""
    text = {**text, "model_type": "kimi_k2", "torch_dtype": "float32"}
    return {
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": text,
        "vision_config": _VISION,
        "projection_hidden_size": 24,
        "tie_word_embeddings": tied,
        "media_placeholder_token_id": 7,
        "torch_dtype": "float32",
    }
