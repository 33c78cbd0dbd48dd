"""Opens the engine that a recipe asks for, in this process or as a service of a cluster. Only this file knows which
class each kind of engine has, and none is imported before it is opened."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol

from etude.engine.protocol import StreamingEngine
from etude.recipe.acting import EngineRecipe
from etude.recipe.lora import LoraRecipe
from etude.recipe.precision import PrecisionRecipe

_SERVICES = {
    "builtin": "etude.engine.builtin.service:EngineService",
    "vllm": "etude.engine.vllm.service:VllmService",
}


class OwnEngine(StreamingEngine, Protocol):
    """An engine in this process, whose owner ends it."""

    async def shutdown(self) -> None:
        """Stop the engine; requests in flight fail."""
        ...


def engine_service(
    model: Path,
    recipe: EngineRecipe,
    *,
    dtype: str,
    threads: int,
    store: str | None = None,
    version: int = 0,
    lockstep: bool = False,
    precision: PrecisionRecipe,
    lora: LoraRecipe | None = None,
    device: str = "cpu",
) -> tuple[str, tuple[Any, ...]]:
    """Return the class of the service that serves a model, and its arguments, as `Cluster.start` takes them.

    `version` is that of the weights in the folder `model`; the newest of the version store `store`, if it has a newer
    one, is served instead. `threads` 0 takes all cores of the process. `lora` describes the adapters that versions
    hold.
    """
    plain = None if lora is None else lora.model_dump(mode="json")
    settings, rounding = recipe.model_dump(mode="json"), precision.model_dump(mode="json")
    arguments = (str(model), settings, dtype, threads, store, version, lockstep, rounding, plain, device)
    return _SERVICES[recipe.kind], arguments


def open_engine(
    model: Path, recipe: EngineRecipe, *, dtype: str, threads: int, precision: PrecisionRecipe, device: str = "cpu"
) -> OwnEngine:
    """Open an engine in this process that serves a model, whose weights do not change."""
    service, arguments = engine_service(model, recipe, dtype=dtype, threads=threads, precision=precision, device=device)
    module, _, name = service.partition(":")
    engine: OwnEngine = getattr(importlib.import_module(module), name)(*arguments)
    return engine
