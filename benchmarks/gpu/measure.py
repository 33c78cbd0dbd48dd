"""Throughput at a mid-size configuration in bf16: training (forward and backward) and decoding on the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from shapes import MID, SMALL
from torch.nn import functional

from etude.model import Cache, Transformer, parameters_of


def measure_training(device: str, small: bool, seconds: float) -> Iterator[dict[str, Any]]:
    model = _model(device, small)
    for batch, length in ((2, 128),) if small else ((8, 1024), (4, 4096)):
        asked = torch.randint(0, MID.vocab_size, (batch, length + 1), device=device)

        def step(asked: torch.Tensor = asked) -> None:
            model.zero_grad(set_to_none=True)
            logits = model(asked[:, :-1]).logits_btv
            functional.cross_entropy(logits.flatten(0, 1), asked[:, 1:].flatten()).backward()

        yield _line(f"train {batch}x{length}", model, batch * length, _pace(step, device, seconds), device)


def measure_decoding(device: str, small: bool, seconds: float) -> Iterator[dict[str, Any]]:
    model = _model(device, small).eval()
    for batch, context in ((4, 64),) if small else ((32, 1024), (256, 1024)):
        cache = Cache(model.config, batch, context + 1, torch.bfloat16, device)
        slots = torch.arange(batch, device=device)
        last = torch.randint(0, MID.vocab_size, (batch,), device=device)
        starts = torch.full((batch,), context, device=device)
        step = partial(_decode, model, cache, last, slots, starts)
        yield _line(f"decode {batch} at {context}", model, batch, _pace(step, device, seconds), device)


def _decode(
    model: Transformer, cache: Cache, last_b: torch.Tensor, slots_b: torch.Tensor, starts_b: torch.Tensor
) -> None:
    """Decode one more token for every row."""
    step = cache.step(slots_b, starts_b, torch.ones_like(starts_b))
    model.extend(last_b[step.rows_t], step, step.first_b)


def _model(device: str, small: bool) -> Transformer:
    with torch.device(device):
        model = Transformer(SMALL if small else MID)
    return model.to(device=device, dtype=torch.bfloat16)


def _pace(step: Callable[[], object], device: str, seconds: float) -> float:
    """Seconds per step after a warm-up, over at least three steps and about `seconds`."""
    for _ in range(3):
        step()
    _wait(device)
    begun, steps = time.perf_counter(), 0
    while steps < 3 or time.perf_counter() - begun < seconds:
        step()
        steps += 1
        if steps % 8 == 0:
            _wait(device)
    _wait(device)
    return (time.perf_counter() - begun) / steps


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _line(name: str, model: Transformer, tokens: int, step_seconds: float, device: str) -> dict[str, Any]:
    count = parameters_of(model.config)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {
        "measure": name,
        "tokens_per_second": round(tokens / step_seconds, 1),
        "step_ms": round(1000 * step_seconds, 2),
        "parameters": count.total,
        "active": count.active,
        "peak_gib": round(peak, 2),
    }


MEASURES = (measure_training, measure_decoding)
