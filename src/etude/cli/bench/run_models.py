"""Runs local models for the benchmarks: a network that reads code, and an engine that answers.

Everything is computed batch-invariantly and greedily, so what was measured before an interrupt is what would be
measured after it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import torch

from etude.bench import (
    BenchError,
    Contestant,
    Kept,
    PlainPolicy,
    Prompt,
    Reading,
    Window,
    key_of,
    rolling_windows,
    scored_ids,
)
from etude.cli.bench.contestants import SLOTS, contestant, unopened
from etude.cli.bench.find_models import LocalModel, ModelOptions
from etude.engine.open import open_engine
from etude.harness import Policy, TokenPolicy, TokenSampling
from etude.model import compute_with, load_hf, serve
from etude.pretrain.measure import window_nats
from etude.recipe.acting import EngineRecipe
from etude.recipe.compute import ComputeRecipe
from etude.trace.builder import TraceBuilder
from etude.training.compute import DTYPES, Compute, choose_compute, remembered_compute

_EFFICIENCY, _BYTES_PER_SECOND, _LAYER_SECONDS = 0.3, 8e9, 0.004
"""Share of a matmul's speed that a network has, and the least time of a decoding step; measured on small networks."""
_PROBE_SECONDS = 0.2


def compute_of(options: ModelOptions, memory: Path | None = None) -> Compute:
    """Return dtype and threads. The choice of "auto" is kept in the file `memory`: what was measured counts for one
    dtype, and a busy machine might choose another one the next time."""
    recipe = ComputeRecipe.model_validate({"dtype": options.dtype, "threads": options.threads})
    if options.dtype != "auto" or memory is None:
        return choose_compute(recipe)
    found = remembered_compute(memory, recipe)
    return replace(found, threads=options.threads) if options.threads else found


@dataclass(frozen=True, slots=True)
class Text:
    """One stretch of code, as one model reads it."""

    ids: list[int]
    bytes: int
    windows: list[Window]
    keys: list[str]

    @classmethod
    def of(cls, model: LocalModel, text: str, context: int, dtype: str) -> Text:
        ids, size = scored_ids(model.tokenizer, text)
        windows = list(rolling_windows(len(ids), context))
        spec = {"model": model.identity(dtype), "text": text, "context": context}
        return cls(ids, size, windows, [key_of({**spec, "window": list(window)}) for window in windows])


def read_texts(
    model: LocalModel, texts: Sequence[Text], compute: Compute, kept: Kept, progress: Callable[[int], None]
) -> Reading:
    """Return how well a network predicts the texts. It is loaded only if there is a window that was not read before."""
    left = [(text, n) for text in texts for n, key in enumerate(text.keys) if key not in kept]
    done = sum(len(text.keys) for text in texts) - len(left)
    progress(done)
    if left:
        compute.apply()
        network = load_hf(model.folder, compute.dtype, mtp_heads=0)
        compute_with(network, model.precision)
        serve(network.eval().requires_grad_(False))
        for text, n in left:
            start, first, end = text.windows[n]
            kept.put(text.keys[n], window_nats(network, text.ids[start:end], first - start))
            done += 1
            progress(done)
        del network
        gc.collect()
    nats = sum(kept[key] for text in texts for key in text.keys)
    return Reading(nats, sum(len(text.ids) - 1 for text in texts), sum(text.bytes for text in texts))


@asynccontextmanager
async def open_local(
    model: LocalModel, prompts: Sequence[Prompt], thinking: int, compute: Compute
) -> AsyncIterator[Contestant]:
    """Yield the model behind an engine that has room for these prompts and their answers."""
    open_policy: Callable[[str], Policy]
    context = context_for(model, prompts, thinking)
    recipe = EngineRecipe(slots=SLOTS, cache_slots=SLOTS, context=context, speculate="never", threads=compute.threads)
    engine = open_engine(
        model.folder, recipe, dtype=compute.dtype_name, threads=recipe.threads, precision=model.precision
    )
    if model.form is None:
        open_policy = partial(_plain, PlainPolicy(engine, model.tokenizer, context, model.end, model.name))
    else:
        sampling = TokenSampling(context, temperature=0.0)

        def open_policy(conversation: str) -> Policy:
            assert model.form is not None
            return TokenPolicy(engine, model.form, (), sampling, TraceBuilder(), conversation=conversation)

    try:
        yield contestant(model, thinking, compute.dtype_name, open_policy)
    finally:
        await engine.shutdown()


def _plain(policy: PlainPolicy, conversation: str) -> Policy:
    return policy


def context_for(model: LocalModel, prompts: Sequence[Prompt], thinking: int) -> int:
    """Return the tokens that the longest prompt and its answer take, or those that the network has."""
    asked = contestant(model, thinking, "", unopened)

    def count(text: str) -> int:
        return len(model.tokenizer.encode(text))

    needed = (model.count_prompt(p.system, p.user, p.plain) + asked.most_tokens(p, count) for p in prompts)
    return max(32, min(model.survey.config.max_position_embeddings, max(needed, default=32)))


@dataclass(frozen=True, slots=True)
class Cost:
    """What a model is expected to take."""

    memory: float
    """Bytes."""
    seconds: float
    most_seconds: float
    """If every answer is as long as it may be."""


def cost_of(
    model: LocalModel,
    texts: Sequence[Text],
    prompts: Sequence[Prompt],
    thinking: int,
    done: Container[str],
    compute: Compute,
) -> Cost:
    """Estimate by the speed of a matmul here, for what was not measured before."""
    config, parameters, item = model.survey.config, model.survey.parameters, compute.dtype.itemsize
    weights = parameters.total * item + (config.vocab_size * config.hidden_size * 4 if item < 4 else 0)
    asked = contestant(model, thinking, compute.dtype_name, unopened)
    left = [prompt for prompt in prompts if asked.key(prompt) not in done]
    groups, width = config.cache_shape
    context = context_for(model, left, thinking) if left else 0
    cache = (2 * SLOTS + 1) * context * config.num_hidden_layers * groups * width * item
    windows = [w for text in texts for w, key in zip(text.windows, text.keys, strict=True) if key not in done]
    given = sum(w.end - w.start for w in windows) + sum(model.count_prompt(p.system, p.user, p.plain) for p in left)

    def count(text: str) -> int:
        return len(model.tokenizer.encode(text))

    reach = max([context, *(w.end - w.start for w in windows)])
    attention = 2 * config.num_hidden_layers * config.hidden_size * reach
    token = (2 * parameters.active + attention) / (_EFFICIENCY * _flops(compute))
    step = parameters.active * item / _BYTES_PER_SECOND + _LAYER_SECONDS * config.num_hidden_layers
    written = max(token, step / SLOTS)
    usual = given * token + written * sum(count(prompt.bound) for prompt in left)
    most = given * token + written * sum(asked.most_tokens(prompt, count) for prompt in left)
    return Cost(weights + cache, usual, most)


def require_memory(model: LocalModel, cost: Cost, dtype: str) -> None:
    free = psutil.virtual_memory().available
    if cost.memory > free:
        raise BenchError(
            f"{model.folder} needs {cost.memory / 1e9:.1f} GB in {dtype}, {free / 1e9:.1f} GB are free: serve it "
            "elsewhere and name its endpoint, or leave it out"
        )


def _flops(compute: Compute) -> float:
    compute.apply()
    one = torch.ones(512, 512, dtype=DTYPES[compute.dtype_name])
    one @ one
    runs, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < _PROBE_SECONDS:
        one @ one
        runs += 1
    return 2 * 512**3 * runs / spent
