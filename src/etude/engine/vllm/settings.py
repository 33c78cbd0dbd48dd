"""How vLLM is started for a checkpoint and a recipe, and what of ours it cannot do. It needs neither torch nor vLLM.

What vLLM would compute otherwise than the trainer is refused here, by name, before the minute that its start takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.engine.protocol import EngineError
from etude.recipe.acting import EngineRecipe
from etude.recipe.lora import LoraRecipe
from etude.recipe.precision import PrecisionRecipe

ITEM_SIZES = {"float32": 4, "bfloat16": 2}
BLOCK = 32
"""Tokens of a block of the prefix cache. vLLM's attention on a CPU takes multiples of 32."""
LEAST_CACHE = 64 << 20
LATENT, ROTATED = 512, 64
"""Widths of a latent and of its rotated part with which vLLM computes latent attention; it takes no other."""
FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3")
"""Values of `model_type` whose published tensors vLLM reads as this project writes them."""


@dataclass(frozen=True, slots=True)
class Settings:
    arguments: dict[str, Any]
    """Arguments of vLLM's AsyncEngineArgs."""
    vocab_size: int
    block: int
    """Tokens of a block of the prefix cache; 0 without one."""
    latent_attention: bool


def settings_of(
    folder: Path,
    recipe: EngineRecipe,
    dtype: str,
    *,
    device: str = "cpu",
    lockstep: bool = False,
    precision: PrecisionRecipe | None = None,
    lora: LoraRecipe | None = None,
) -> Settings:
    config = _config(folder)
    latent = bool(config.get("kv_lora_rank"))
    if dtype not in ITEM_SIZES:
        raise EngineError(f"dtype {dtype!r} is not known; expected one of {', '.join(ITEM_SIZES)}")
    if reason := why_not(
        config, recipe, device=device, lockstep=lockstep, precision=precision or PrecisionRecipe(), lora=lora
    ):
        raise EngineError(f'engine.kind = "vllm": {reason}')
    block = 0 if latent else BLOCK
    arguments: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "enforce_eager": True,
        "max_model_len": recipe.context,
        "max_num_seqs": recipe.slots,
        # A prompt is never prefilled in parts: a request with a seed would end the worker (known.py).
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(recipe.context, 4096),
        # Those of the distribution that was sampled from, after temperature.
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": not latent,
        "kv_cache_memory_bytes": _cache_bytes(config, recipe, dtype, latent),
        "worker_extension_cls": "etude.engine.vllm.inside.experts.WorkerCalls",
        # Probes go before all requests that wait: no answer leaves until they are done.
        "scheduling_policy": "priority",
        "disable_log_stats": True,
    }
    if block:
        arguments["block_size"] = block
    return Settings(arguments, config["vocab_size"], block, latent)


def environment(settings: Settings, interpreter: Path, threads: int) -> dict[str, str]:
    """Return what vLLM's processes need in their environment."""
    environment = {
        "VLLM_PLUGINS": "etude",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # Threads that wait by spinning take the cores from vLLM's other processes, and from ours.
        "KMP_BLOCKTIME": "0",
        "ETUDE_VLLM_LATENT_ATTENTION": "1" if settings.latent_attention else "",
    }
    openmp = interpreter.parent.parent / "lib" / "libiomp5.so"
    return environment | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {})


def _config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder} is no checkpoint: {error}") from error
    return config


def why_not(
    config: Mapping[str, Any],
    recipe: EngineRecipe,
    *,
    device: str,
    lockstep: bool,
    precision: PrecisionRecipe,
    lora: LoraRecipe | None,
) -> str | None:
    """Return the first thing that vLLM cannot do for a network, given by its config.json, and a recipe; or None."""
    family, ours = config.get("model_type"), config.get("etude") or {}
    if device != "cpu":
        return f'compute.device = "{device}" is not tested with it; use the built-in engine there'
    if lockstep:
        return 'rl.mode = "sync" needs batches that do not depend on timing, which vLLM does not give'
    if precision.rounds or precision.invariant:
        return "the recipe's precision section rounds matmuls otherwise than vLLM would"
    if recipe.speculate == "always":
        return 'engine.speculate = "always": with drafts it samples wrongly on a CPU (known.py); set "auto"'
    if lora is not None and lora.rank:
        return "lora.rank: versions of a run with adapters hold the adapters alone, which are not loaded there yet"
    if family not in FAMILIES:
        return f"model_type {family!r} is not known to load there; known are {', '.join(FAMILIES)}"
    if not config.get("architectures"):
        return 'config.json names no "architectures", by which vLLM chooses the network'
    if config.get("kv_lora_rank") and (config["kv_lora_rank"], config.get("qk_rope_head_dim")) != (LATENT, ROTATED):
        found = f"{config['kv_lora_rank']} and {config.get('qk_rope_head_dim')}"
        return (
            f"vLLM computes latent attention only with kv_lora_rank {LATENT} and qk_rope_head_dim {ROTATED}; this "
            f"model has {found} (recipes/tiny-qwen3.toml has another attention)"
        )
    if ours.get("embedding_scale", 1.0) != 1:
        return "model.embedding_scale: a version holds the embedding without its scale, which vLLM does not apply"
    return None


def _cache_bytes(config: dict[str, Any], recipe: EngineRecipe, dtype: str, latent: bool) -> int:
    """Return the size of vLLM's KV cache: the recipe's slots, and the finished sequences that it keeps."""
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    entry = LATENT + ROTATED if latent else 2 * (config.get("num_key_value_heads") or heads) * width
    sequences = recipe.slots + (0 if latent else recipe.cache_slots)
    return max(
        LEAST_CACHE, int(sequences * (recipe.context + BLOCK) * config["num_hidden_layers"] * entry * ITEM_SIZES[dtype])
    )
