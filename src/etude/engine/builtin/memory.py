"""The memory of the built-in engine: what it takes, and what to change if it is too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from etude.engine.builtin.scheduler import TOKENS_AT_ONCE
from etude.model import ModelConfig, adapter_size, parameters_of
from etude.model.checkpoints.slots import without_memory
from etude.model.config import LatentShape
from etude.model.step import NUMBERS_AT_ONCE, NUMBERS_AT_ONCE_ON_GPU, WIDE
from etude.recipe.acting import EngineRecipe
from etude.recipe.lora import LoraRecipe
from etude.training.memory import Change, advice, in_gb, own_limit

_FULL = 4
_STEPS = 3
"""Tensors of the size of a step's logits that exist at once."""
_HOLES = 1.3
"""What the heap of a CPU takes for a step, relative to the step's tensors, since these are of many sizes."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of the engine's process, without the interpreter and its libraries."""

    weights: int
    cache: int
    """Entries of all tokens in all slots."""
    records: int
    """Tokens, log-probs, versions and experts of all slots."""
    step: int
    """One step: as many prompts as are read at once, and the logits of the tokens to sample."""
    versions: int
    """The version in use and the next one, as they were read."""

    @property
    def peak(self) -> int:
        return sum(getattr(self, name) for name in self.__dataclass_fields__)

    def __str__(self) -> str:
        return ", ".join(f"{name} {in_gb(getattr(self, name))}" for name in self.__dataclass_fields__)


def engine_memory(
    recipe: EngineRecipe,
    config: ModelConfig,
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    swaps: bool = True,
    lora: LoraRecipe,
) -> EngineMemory:
    """Return the memory of an engine, which is not built. `swaps` says whether it gets new versions of its weights,
    `lora` which adapters these are."""
    half = dtype.itemsize
    base = parameters_of(config).total * half
    adapters = adapter_size(without_memory(config), lora) * half if lora.rank else 0
    wide_head = config.vocab_size * config.hidden_size * _FULL if half < _FULL else 0
    return _in_slots(recipe, config, half, base + adapters + wide_head, 2 * (adapters or base) if swaps else 0, device)


def _in_slots(
    recipe: EngineRecipe, config: ModelConfig, half: int, weights: int, versions: int, device: str
) -> EngineMemory:
    groups, entry = config.cache_shape
    rows, context = recipe.slots + recipe.cache_slots, recipe.context
    layers = config.num_hidden_layers + min(1, config.num_nextn_predict_layers)
    return EngineMemory(
        weights=weights,
        cache=layers * (rows + 1) * groups * context * entry * half,
        records=rows * context * (16 + 2 * config.moe_layers * config.num_experts_per_tok),
        step=int(_step(recipe, config, half, device) * (1 if device == "cuda" else _HOLES)),
        versions=versions,
    )


def _step(recipe: EngineRecipe, config: ModelConfig, half: int, device: str) -> int:
    """Return the bytes of tensors of one step: the masks of all prompts, the gathered entries of a part of them, and
    per token what the wider of attention and feed-forward holds; the logits of the tokens to sample."""
    (groups, entry), context, heads = config.cache_shape, recipe.context, config.attention.heads
    tokens = max(min(TOKENS_AT_ONCE, recipe.slots * context), context)
    most = NUMBERS_AT_ONCE if device == "cpu" else NUMBERS_AT_ONCE_ON_GPU
    gathered = min(max(most, groups * context * entry), -(-tokens // WIDE) * groups * context * entry)
    scores = WIDE * heads * gathered // (groups * entry)
    routed = config.mixture.per_token * config.mixture.width + config.mixture.shared_width if config.mixture else 0
    inner = 3 * max(config.intermediate_size, routed) + 3 * config.hidden_size
    query = entry if isinstance(config.attention, LatentShape) else config.attention.query  # as wide as a latent
    attended = heads * (3 * query + config.attention.query) + 3 * config.hidden_size
    per_token = heads * context + max(inner, attended)
    return (tokens * per_token + gathered + 2 * scores) * half + _STEPS * recipe.slots * config.vocab_size * _FULL


def told(
    recipe: EngineRecipe, config: ModelConfig, dtype: torch.dtype, device: str, *, swaps: bool, lora: LoraRecipe
) -> str:
    """Return what an engine takes and which field to change, for the message that memory ran out."""
    memory = engine_memory(recipe, config, dtype, device, swaps=swaps, lora=lora)
    limit = min(own_limit(device), memory.peak - 1)
    found = advice(changes(recipe, config, dtype, device, swaps=swaps, lora=lora), limit)
    return f"it takes about {in_gb(memory.peak)} ({memory}); {found}"


def changes(
    recipe: EngineRecipe, config: ModelConfig, dtype: torch.dtype, device: str, *, swaps: bool, lora: LoraRecipe
) -> Iterator[Change]:
    """Yield changes that save memory without another result: fewer kept sequences, then fewer at once too."""
    whole = engine_memory(recipe, config, dtype, device, swaps=swaps, lora=lora)
    slots, kept = recipe.slots, recipe.cache_slots
    while slots > 1 or kept:
        slots, kept = (slots, kept // 2) if kept else (slots // 2, 0)
        fields = [] if kept == recipe.cache_slots else [f"engine.cache_slots={kept}"]
        fields += [] if slots == recipe.slots else [f"engine.slots={slots}"]
        smaller = recipe.model_copy(update={"slots": slots, "cache_slots": kept})
        held = _in_slots(smaller, config, dtype.itemsize, whole.weights, whole.versions, device)
        yield Change(" ".join(fields), held.peak)
