"""Opens a model for the server: the engine runs in a process of its own, so that decoding and the network's traffic do
not wait for each other. An engine that dies is restarted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from etude.cluster import ClusterError, Supervised, open_cluster
from etude.engine.open import engine_service
from etude.engine.remote import RemoteEngine
from etude.recipe.acting import EngineRecipe
from etude.recipe.compute import ClusterRecipe, ComputeRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.serve.gateway import Gateway, Served
from etude.serve.limits import ServeError
from etude.text.format import Format
from etude.text.pretrained import PretrainedTokenizer
from etude.text.tokenizer import Tokenizer

_WATCH_SECONDS = 1.0
_USUAL_CONTEXT = 8192
"""Longest sequence of a model that is not a run's, unless another is asked for: its cache takes memory."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model to serve."""

    folder: Path
    tokenizer: Tokenizer | PretrainedTokenizer
    form: Format
    form_name: str
    names: tuple[str, ...]
    engine: EngineRecipe
    compute: ComputeRecipe
    precision: PrecisionRecipe
    context: int | None = None
    """Longest sequence in tokens; None: what the model knows, up to _USUAL_CONTEXT."""
    max_tokens: int | None = None
    """Longest answer; None: what the context has room for."""


@dataclass(frozen=True, slots=True)
class Opened:
    gateway: Gateway
    told: str
    """What was opened, in a line."""


@asynccontextmanager
async def opened(source: Source, folder: Path, restarted: Callable[[str], None]) -> AsyncIterator[Opened]:
    """Open the model of a source. Its engine writes its log below `folder`. `restarted` is told why it had to be
    restarted. Raises ClusterError if the engine cannot be started."""
    limits = ClusterRecipe()
    cluster = await open_cluster("processes", run_folder=folder)
    try:
        asked = await cluster.start("checkpoint", "etude.engine.facts:CheckpointFacts", deadline=limits.start_seconds)
        facts = await asked.call(
            "find", source.folder, source.tokenizer.vocab_size, source.compute, deadline=limits.start_seconds
        )
        await asked.kill()
        context = source.context or min(facts.positions, _USUAL_CONTEXT)
        if context > facts.positions:
            raise ServeError(f"--context {context}: the model knows {facts.positions} positions")
        service, arguments = engine_service(
            source.folder,
            source.engine.model_copy(update={"context": context}),
            dtype=facts.dtype,
            threads=source.compute.threads,
            precision=source.precision,
            device=source.compute.device,
        )
        remote = await cluster.start("engine", service, *arguments, deadline=limits.start_seconds)

        def told(kind: str, **fields: object) -> None:
            if fields.get("reason"):
                restarted(str(fields["reason"]))

        engine = Supervised(remote, limits.restarts, on_event=told, start_deadline=limits.start_seconds)
        watching = asyncio.create_task(engine.watch(_WATCH_SECONDS))
        try:
            served = Served(
                source.form,
                source.tokenizer,
                source.tokenizer.vocab_size,
                source.names,
                context,
                source.max_tokens or context,
            )
            size = f"{facts.parameters / 1e9:.2f} billion" if facts.parameters >= 1e8 else f"{facts.parameters:,}"
            line = f"{size} parameters in {facts.dtype} on {source.compute.device}, format {source.form_name}"
            yield Opened(Gateway(RemoteEngine(remote, limits), served), f"{line}, context {context}")
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError, ClusterError):
                await watching
    finally:
        await cluster.close()
