"""A supervised stage as a service, which trains in its own thread and streams progress.

The service has no state beyond the run folder: after a kill and restart, `run` continues from the last checkpoint, and
for a finished stage it yields the result at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from etude.pretrain.stage import finished_result, run_stage
from etude.recipe import Recipe

_DONE = object()


class StageService:
    def __init__(self, stage: str, run_folder: str | Path, recipe: Mapping[str, Any]) -> None:
        """`recipe` is the resolved recipe as a plain dictionary (model_dump(mode="json", by_alias=True))."""
        self._stage, self._run = stage, Path(run_folder)
        self._recipe = Recipe.model_validate(dict(recipe))

    async def run(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the progress dictionaries of `run_stage`. Close the stream to stop training within a few steps."""
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()
        stop = threading.Event()

        def send(item: Any) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        def train() -> None:
            try:
                for progress in run_stage(self._stage, self._run, self._recipe):
                    send(progress)
                    if stop.is_set():
                        break
                send(_DONE)
            except BaseException as error:  # noqa: BLE001 - handed over to the stream, which raises it
                send(error)

        thread = threading.Thread(target=train, name=f"stage-{self._stage}", daemon=True)
        thread.start()
        try:
            while (item := await items.get()) is not _DONE:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)

    def result(self) -> dict[str, Any] | None:
        return finished_result(self._run / "stages" / self._stage)
