"""Models as the benchmarks ask them: local ones behind an engine, others behind an endpoint, which needs no torch."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from etude.bench import Contestant, Kept, Prompt
from etude.cli.bench.find_models import EndpointModel, LocalModel, Model, ModelOptions
from etude.harness import ChatPolicy, Endpoint, Policy

if TYPE_CHECKING:
    from etude.training.compute import Compute

SLOTS = 4
"""Prompts that a local model answers at the same time."""


def contestant(model: Model, thinking: int, dtype: str, open_policy: Callable[[str], Policy]) -> Contestant:
    identity = model.identity(dtype) if isinstance(model, LocalModel) else model.identity()
    return Contestant(model.name, identity, model.plain, open_policy, thinking)


def unopened(conversation: str) -> Policy:
    raise AssertionError("this model is not to be asked")


def unanswered(
    model: Model, prompts: Sequence[Prompt], options: ModelOptions, compute: Compute | None, kept: Kept
) -> list[Prompt]:
    one = contestant(model, options.thinking, compute.dtype_name if compute else "", unopened)
    return [prompt for prompt in prompts if one.key(prompt) not in kept]


@asynccontextmanager
async def opened(
    model: Model, prompts: Sequence[Prompt], options: ModelOptions, compute: Compute | None
) -> AsyncIterator[tuple[Contestant, int]]:
    """Yield the model, and how many prompts to ask it at the same time. It has room for the given prompts; without any,
    it is not opened."""
    dtype = compute.dtype_name if compute else ""
    if not prompts:
        yield contestant(model, options.thinking, dtype, unopened), 1
    elif isinstance(model, EndpointModel):
        key = os.environ.get(model.key, "")
        policy = ChatPolicy(Endpoint(model.url, model.model, key, temperature=0.0, seed=model.seed), ())
        try:
            yield contestant(model, options.thinking, dtype, lambda _: policy), options.at_once
        finally:
            await policy.aclose()
    else:
        from etude.cli.bench.run_models import open_local

        assert compute is not None
        async with open_local(model, prompts, options.thinking, compute) as one:
            yield one, 2 * SLOTS
