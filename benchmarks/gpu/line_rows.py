"""The line on one GPU: training steps beside transformers', the engine beside the memory's bandwidth, and the whole RL
circle of five steps. Networks have published shapes and random weights.

Each row is measured on its own: one that fails, or for which a package is missing, says why. MFU counts what a step has
to compute (three times the forward pass, with half of the attention scores), not what is computed again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from published import QWEN3_06B, QWEN3_4B, SLICE_30B, TINY_DENSE, TINY_SPARSE
from torch import nn

from etude.model import Transformer, head_cross_entropy, parameters_of, read_config
from etude.model.activations import Pass, activations_of
from etude.model.checkpoints.slots import without_memory
from etude.model.compiled import compile_parts

Row = dict[str, Any]
PEAK_TFLOPS = 989.4
"""bf16 without sparsity, as published for the H100 SXM and the H200."""
TRAIN_SECONDS, ENGINE_SECONDS = 5.0, 5.0
_GIB, _SHORT = 2**30, 8192


@dataclass(frozen=True, slots=True)
class Training:
    """One shape and length, and how its optimizer's states fit."""

    name: str
    shape: dict[str, Any]
    length: int
    moments: str = "float32"
    offload: str = "none"
    recompute: bool = False
    compiled: bool = False


TRAININGS = (
    Training("qwen3-0.6b", QWEN3_06B, 8192),
    Training("qwen3-0.6b", QWEN3_06B, 8192, compiled=True),
    Training("30b-a3b-slice", SLICE_30B, 8192, moments="8bit"),
    Training("qwen3-4b", QWEN3_4B, 8192, moments="8bit", recompute=True),
    Training("qwen3-0.6b", QWEN3_06B, 32_768, recompute=True),
    Training("30b-a3b-slice", SLICE_30B, 32_768, moments="8bit", recompute=True),
    Training("qwen3-4b", QWEN3_4B, 32_768, moments="8bit", offload="moments", recompute=True),
)
TRIED = (
    Training("dense", TINY_DENSE, 64),
    Training("sparse", TINY_SPARSE, 64, moments="8bit", offload="masters", recompute=True),
)
"""Rows to try this script without a GPU."""


def line_rows(device: str, small: bool, until: float) -> Iterator[Row]:
    """Measure all rows, but start none after `until` on the monotonic clock."""
    shape, counts, steps = (TINY_DENSE, (1, 4), 2) if small else (QWEN3_06B, (1, 64, 256), 5)
    trainings = TRIED if small else TRAININGS
    # The long rows come last, because they may take all the time.
    for training in (one for one in trainings if one.length <= _SHORT):
        yield from _training_rows(training, device, small, until)
    for requests in counts:
        named = {"row": "engine", "shape": "qwen3-0.6b", "requests": requests}
        yield _measured(named, partial(decoded, shape, requests, device, small), device, until)
    named = {"row": "rl circle", "shape": "qwen3-0.6b", "steps": steps}
    yield _measured(named, partial(_circle, shape, steps, device), device, until)
    for training in (one for one in trainings if one.length > _SHORT):
        yield from _training_rows(training, device, small, until)


def _training_rows(training: Training, device: str, small: bool, until: float) -> Iterator[Row]:
    named = {"row": "train", "shape": training.name, "tokens": training.length, "compiled": training.compiled}
    yield _measured(named | {"by": "etude"}, partial(trained, training, device, small), device, until)
    if not training.compiled:
        work = partial(trained_by_transformers, training, device, small)
        yield _measured(named | {"by": "transformers"}, work, device, until)


def _circle(shape: dict[str, Any], steps: int, device: str) -> Row:
    from circle import turned  # here, because it needs more packages

    return turned(read_config(shape), steps, device)


def _measured(named: Row, work: Callable[[], Row], device: str, until: float) -> Row:
    if time.monotonic() > until:
        return {**named, "not_measured": "time was up"}
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = time.monotonic()
    try:
        found = work()
        if device == "cuda":
            found["peak_gib"] = round(torch.cuda.max_memory_allocated() / _GIB, 2)
    except Exception as error:  # noqa: BLE001 - compilers, drivers and packages raise of their own
        found = {"not_measured": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return {**named, **found, "seconds": round(time.monotonic() - begun, 1)}


def random_network(shape: dict[str, Any], device: str, dtype: torch.dtype) -> Transformer:
    """Make the weights on the device: on a CPU, those of four billion parameters take a minute."""
    model = without_memory(read_config(shape)).to(dtype).to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02)
        for buffer in model.buffers():
            buffer.zero_()
    return model


def trained(training: Training, device: str, small: bool) -> Row:
    from etude.recipe.training import OptimizerRecipe
    from etude.training import MasterWeights, TrainerMemory, build_optimizer

    model = random_network(training.shape, device, torch.bfloat16)
    model.checkpoint_activations(training.recompute)
    if training.compiled:
        compile_parts(model)
    recipe = OptimizerRecipe(name="adamw", lr=1e-5, warmup_steps=0, moments=training.moments)
    optim = build_optimizer(model, recipe, 10_000, masters=MasterWeights(model, torch.bfloat16, training.offload))
    tokens = torch.randint(model.config.vocab_size, (1, training.length + 1), device=device)
    weights = torch.ones(training.length, device=device)

    def step() -> None:
        optim.zero_grad()
        hidden = model(tokens[:, :-1], logits=False).hidden_bth.flatten(0, 1)
        head_cross_entropy(hidden, model.head, tokens[0, 1:], weights).backward()
        optim.step()

    work = Pass(1, training.length, torch.bfloat16, device == "cuda")
    held = activations_of(model.config, work, checkpointed=training.recompute)
    memory = TrainerMemory.of(model, recipe, torch.bfloat16, offload=training.offload)
    memory = memory.during(activations=held.layers + held.ends, logits=held.last, reused=True)
    found = _throughput(step, model.config, training.length, device, small)
    found["planned_gib"] = round(memory.peak / _GIB, 2)
    states = {"moments": training.moments, "offload": training.offload, "recompute": training.recompute}
    return found | states | {"parameters": parameters_of(model.config).total}


def trained_by_transformers(training: Training, device: str, small: bool) -> Row:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(training.shape)
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.train()
    if training.recompute:
        model.gradient_checkpointing_enable()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")
    tokens = torch.randint(config.vocab_size, (1, training.length), device=device)

    def step() -> None:
        optim.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()

    found = _throughput(step, read_config(training.shape), training.length, device, small)
    return found | {"states": "moments and weights in bf16, no masters", "recompute": training.recompute}


def _throughput(step: Callable[[], None], config: Any, tokens: int, device: str, small: bool) -> Row:
    seconds = pace(step, device, 0.0 if small else TRAIN_SECONDS)
    tflops = operations(config, tokens) / seconds / 1e12
    return {
        "tokens_s": round(tokens / seconds, 1),
        "step_ms": round(1000 * seconds, 1),
        "tflops": round(tflops, 1),
        "mfu": round(tflops / PEAK_TFLOPS, 3),
    }


def operations(config: Any, length: int) -> float:
    """Return the floating-point operations of a training step over one sequence."""
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    multiplied = parameters_of(config).active - looked_up
    shape = config.attention
    scores = config.num_hidden_layers * length * length * shape.heads * shape.head
    return 6.0 * multiplied * length + 6.0 * scores


def pace(step: Callable[[], object], device: str, seconds: float) -> float:
    """Return the median seconds per step of at least three, after two that warm up."""
    for _ in range(2):
        step()
    taken: list[float] = []
    begun = time.perf_counter()
    while len(taken) < 3 or (time.perf_counter() - begun < seconds and len(taken) < 50):
        started = time.perf_counter()
        step()
        wait(device)
        taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def bandwidth(device: str, size: int = 2**31) -> float:
    """Return the bytes per second that a copy in the device's memory reads and writes."""
    source = torch.empty(size if device == "cuda" else 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / pace(lambda: target.copy_(source), device, 0.2)


def decoded(shape: dict[str, Any], requests: int, device: str, small: bool) -> Row:
    """Decode with all requests live, after their prompts were read."""
    import numpy as np

    from etude.engine.builtin import BuiltinEngine
    from etude.engine.protocol import GenerateRequest, Sampling
    from etude.recipe.acting import EngineRecipe
    from etude.weights.torch_bridge import from_state_dict

    model = random_network(shape, device, torch.bfloat16)
    prompt, context = (16, 64) if small else (512, 1024)
    settings = {"slots": requests, "context": context, "cache_slots": 0, "speculate": "never"}
    engine = BuiltinEngine(model, EngineRecipe(**settings))
    config, numbers = model.config, np.random.default_rng(0)
    for name in range(requests):
        ids = numbers.integers(0, config.vocab_size, prompt).astype(np.int32)
        engine.submit(GenerateRequest(str(name), ids, Sampling(context, (), seed=name)))
    begun = time.perf_counter()
    engine.step()
    prefill = time.perf_counter() - begun
    engine.step()
    taken: list[float] = []
    begun = time.perf_counter()
    while engine.busy and len(taken) < context - prompt - 4:
        started = time.perf_counter()
        engine.step()
        taken.append(time.perf_counter() - started)
        if time.perf_counter() - begun > ENGINE_SECONDS:
            break
    step = sorted(taken)[len(taken) // 2]
    groups, width = config.cache_shape
    live = prompt + len(taken) / 2
    read = sum(p.nbytes for p in model.parameters()) + requests * live * config.num_hidden_layers * groups * width * 2
    tensors = from_state_dict(model.state_dict())
    wait(device)
    begun = time.perf_counter()
    engine.swap(1, tensors, delta=False)
    wait(device)
    pause = time.perf_counter() - begun
    return {
        "tokens_s": round(requests / step, 1),
        "step_ms": round(1000 * step, 2),
        "share_of_bandwidth": round(read / step / bandwidth(device), 3),
        "prefill_tokens_s": round(requests * prompt / prefill, 1),
        "update_pause_ms": round(1000 * pause, 1),
    }
