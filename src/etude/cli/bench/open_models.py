"""Opens models to be asked: local ones behind an engine, others behind their endpoint, which needs no torch."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from etude.bench import Contestant, Prompt
from etude.cli.bench.contestants import SLOTS, contestant, unopened
from etude.cli.bench.find_models import EndpointModel, Model, ModelOptions
from etude.harness import ChatPolicy, Endpoint

if TYPE_CHECKING:
    from etude.training.compute import Compute


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
