"""The built-in engine as a service: async methods for callers, and a thread that runs the decode loop.

Only the decode thread uses the engine. The async methods send commands to this thread, which executes them between two
decode steps, and wait for the answers. A new weights version is read and verified in a thread pool while decoding
continues; only the copy into the model happens between two steps.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch

from etude.engine.builtin.engine import Answer, BuiltinEngine
from etude.engine.builtin.memory import told
from etude.engine.builtin.streaming import Streaming
from etude.engine.protocol import (
    Delivery,
    EngineError,
    EngineInfo,
    EngineOutOfMemory,
    EngineStats,
    GenerateRequest,
    Generation,
    Refusal,
    UpdateRefused,
)
from etude.model import begin_adapters, compute_with, load_hf, serve, survey
from etude.recipe.acting import EngineRecipe
from etude.recipe.lora import LoraRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.training import OutOfMemory, told_when_short
from etude.training.compute import DTYPES
from etude.weights import StoreFailed, Tensors, WeightsError, WeightStore, cache_of, read_held
from etude.weights.torch_bridge import into_module

T = TypeVar("T")
log = logging.getLogger(__name__)
_END_SECONDS = 30.0
"""Maximum wait for the decode thread when the service is garbage-collected or the interpreter exits."""


class EngineService:
    """The built-in engine behind the Engine protocol, started as `etude.engine.builtin.service:EngineService`."""

    def __init__(
        self,
        model_folder: str | Path,
        recipe: EngineRecipe | Mapping[str, Any] | None = None,
        dtype: str = "float32",
        threads: int | None = None,
        store: str | None = None,
        version: int = 0,
        lockstep: bool = False,
        precision: PrecisionRecipe | Mapping[str, Any] | None = None,
        lora: Mapping[str, Any] | None = None,
        device: str = "cpu",
    ) -> None:
        """`version` is that of the weights in `model_folder`; if `store`, the version store's folder or URL, has a
        newer one, the engine starts with it. `lora` is the recipe's section: the adapters that versions hold, if the
        model in `model_folder` has none yet. `threads` None takes the recipe's value; 0 uses every core of this
        process."""
        if dtype not in DTYPES:
            raise EngineError(f"dtype {dtype!r} is not known; expected one of {', '.join(DTYPES)}")
        settings = recipe if isinstance(recipe, EngineRecipe) else EngineRecipe.model_validate(recipe or {})
        adapters = LoraRecipe.model_validate(lora or {})

        def needed() -> str:
            network = survey(model_folder).config
            return told(settings, network, DTYPES[dtype], device, swaps=store is not None, lora=adapters)

        short = partial(told_when_short, device=device, needed=needed)
        with short("the start of the engine"):
            engine = self._open(
                Path(model_folder), settings, dtype, store, version, lockstep, precision, adapters, device
            )
        wanted = settings.threads if threads is None else threads
        loop = _Loop(engine, wanted or len(os.sched_getaffinity(0)), lambda: short("a step of the engine"))
        self._commands = loop.commands
        self._updating = asyncio.Lock()
        self._short = short
        self._thread = threading.Thread(target=loop.run, name="engine", daemon=True)
        self._thread.start()
        weakref.finalize(self, _end, loop.commands, self._thread)

    def _open(
        self,
        model_folder: Path,
        settings: EngineRecipe,
        dtype: str,
        store: str | None,
        version: int,
        lockstep: bool,
        precision: PrecisionRecipe | Mapping[str, Any] | None,
        adapters: LoraRecipe,
        device: str,
    ) -> BuiltinEngine:
        if device == "cuda" and settings.gpu_gib:
            whole = torch.cuda.get_device_properties().total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, settings.gpu_gib * 2**30 / whole))
        model = load_hf(model_folder, DTYPES[dtype], device=device)
        begin_adapters(model, adapters, dtype=DTYPES[dtype])
        rounding = (
            precision if isinstance(precision, PrecisionRecipe) else PrecisionRecipe.model_validate(precision or {})
        )
        compute_with(model, rounding)
        serve(model)
        self._store = WeightStore(store) if store else None
        self._have: tuple[int, Tensors] | None = None
        if self._store is not None and (latest := self._store.latest()) is not None and latest > version:
            try:
                self._have = (latest, self._store.read(latest))
                into_module(model, self._have[1])
            except WeightsError as error:
                raise UpdateRefused(f"cannot start on version {latest}: {error}") from error
            version = latest
        return BuiltinEngine(model, settings, version=version, lockstep=lockstep)

    async def info(self) -> EngineInfo:
        return await self._ask(lambda loop: loop.engine.info)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Queue a request and return its answer. A repeated call for a request in flight waits for the same answer."""
        answer: Future[Generation] = Future()
        self._send(lambda loop: loop.submit(request, answer))
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            self._commands.put(lambda loop: loop.abandon(request.id, answer))
            raise

    async def begin(self, request: GenerateRequest, consumer: str, *, first: bool) -> None:
        await self._ask(lambda loop: loop.begin(request, consumer, first=first), always=True)

    async def pull(self, consumer: str, after: int, *, wait: float = 5.0, every: float = 0.05) -> Delivery:
        answer: Future[Delivery] = Future()
        self._send(lambda loop: loop.streaming.pull(consumer, after, wait, every, answer))
        return await asyncio.wrap_future(answer)

    async def abort(self, request_id: str) -> None:
        await self._ask(lambda loop: loop.abort(request_id))

    async def open(self, conversations: list[str]) -> None:
        await self._ask(lambda loop: loop.engine.open(conversations))

    async def close(self, conversation: str) -> None:
        await self._ask(lambda loop: loop.close(conversation))

    async def update(self, version: int) -> None:
        async with self._updating:
            if (await self.info()).version == version:
                return
            if self._store is None:
                raise UpdateRefused(f"version {version}: this engine was started without a weight store")
            try:
                with self._short(f"loading version {version} into the engine"):
                    tensors, delta = await asyncio.to_thread(_read, self._store, version, self._have)
            except WeightsError as error:
                raise UpdateRefused(f"version {version} could not be loaded: {error}") from error
            await self._ask(lambda loop: loop.engine.swap(version, tensors, delta=delta), between_rounds=True)
            self._have = (version, tensors)

    async def rest(self) -> None:
        """Give the GPU's memory to another process, and decode nothing until `wake`."""
        await self._ask(lambda loop: loop.engine.rest(), between_rounds=True)

    async def wake(self) -> None:
        await self._ask(lambda loop: loop.engine.wake())

    async def stats(self) -> EngineStats:
        return await self._ask(lambda loop: loop.stats())

    async def shutdown(self) -> None:
        """Stop the decode loop; requests in flight fail."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    def _send(self, command: Callable[[_Loop], None]) -> None:
        self._commands.put(command)
        if not self._thread.is_alive():
            raise EngineError("the engine was shut down")

    async def _ask(self, command: Callable[[_Loop], T], *, between_rounds: bool = False, always: bool = False) -> T:
        """Run a command on the decode thread; with `between_rounds`, in lockstep mode, between two rounds; with
        `always`, also if the loop serves no more requests."""
        answer: Future[T] = Future()
        self._send(lambda loop: loop.carry_out(command, answer, between_rounds=between_rounds, always=always))
        return await asyncio.wrap_future(answer)


def _end(commands: SimpleQueue[Any], thread: threading.Thread) -> None:
    """Stop the decode loop, also when the interpreter exits, since a thread killed in mid-step aborts the process."""
    commands.put(None)
    if thread is not threading.current_thread():
        thread.join(_END_SECONDS)


def _read(store: WeightStore, version: int, have: tuple[int, Tensors] | None) -> tuple[Tensors, bool]:
    """Return a version's tensors, and whether it is stored as a delta. They come from the trainer's memory if it is on
    this machine, else from the store. `have` is the version that this engine holds."""
    with suppress(StoreFailed):  # an engine may have no right to write; then the trainer may delete what it needs
        store.announce(f"{socket.gethostname()}-{os.getpid()}", version)
    manifest = store.manifest(version)
    tensors = read_held(store.location, manifest) or store.read(version, have=have, resume=cache_of(store.location))
    return tensors, manifest.kind == "delta"


class _Loop:
    """The decode loop and its commands. All methods run on the decode thread, between two decode steps."""

    def __init__(
        self, engine: BuiltinEngine, threads: int, short: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`short` is the context of a step, in which running out of memory raises OutOfMemory."""
        self.engine, self._short = engine, short
        self.commands: SimpleQueue[Callable[[_Loop], None] | None] = SimpleQueue()
        self._threads = threads
        self.streaming = Streaming(engine, time.monotonic)
        self._waiters: dict[str, tuple[GenerateRequest, list[Future[Generation]]]] = {}
        """The requests in flight, and those who wait for their answers. Streamed requests may have nobody here."""
        self._between_rounds: list[Callable[[], None]] = []
        self._busy = self._idle = 0.0
        self._end_reason = ""
        """Why the loop no longer serves requests; empty while it does."""
        self._shortage: OutOfMemory | None = None

    def run(self) -> None:
        """Decode until the command None arrives. If the engine fails, or runs out of memory, answer every later command
        with the error."""
        torch.set_num_threads(self._threads)  # applies to the calling thread only
        try:
            while self._run_commands():
                start = time.monotonic()
                with self._short():
                    answers = self.engine.step()
                for answer in answers:
                    self._answer(answer)
                self._deliver()
                self._busy += time.monotonic() - start
        except Exception as error:
            log.exception("the decode loop failed")
            if isinstance(error, OutOfMemory):
                self._shortage = error
                self._refuse_everything(str(error))
            else:
                self._refuse_everything(f"the decode loop failed: {type(error).__name__}: {error}")
            self._serve_without_engine()
        self._refuse_everything(self._end_reason or "the engine was shut down")
        while not self.commands.empty():
            if (command := self.commands.get()) is not None:
                command(self)
        self._deliver()
        self.streaming.close(self._refused())

    def submit(self, request: GenerateRequest, answer: Future[Generation]) -> None:
        """Submit a request, or join the same request in flight."""
        try:
            self._queue(request).append(answer)
        except EngineError as error:
            answer.set_exception(error)

    def begin(self, request: GenerateRequest, consumer: str, *, first: bool) -> None:
        """Submit a request whose tokens are streamed to a consumer."""
        if self.streaming.begin(request.id, consumer, first=first):
            try:
                self._queue(request)
            except EngineError as error:
                self.streaming.end(Refusal(request.id, error))

    def _queue(self, request: GenerateRequest) -> list[Future[Generation]]:
        """Submit a request, unless it is in flight already. Return the list of those who wait for its answer."""
        if self._end_reason:
            raise self._refused(f"request {request.id}: ")
        known = self._waiters.get(request.id)
        if known is None:
            self.engine.submit(request)
            known = self._waiters[request.id] = (request, [])
        elif not _same(known[0], request):
            raise EngineError(f"request {request.id} is in flight with another prompt or sampling")
        return known[1]

    def abandon(self, request_id: str, answer: Future[Generation]) -> None:
        """Forget a caller that no longer waits for a request, and abort the request if no other caller waits for it."""
        _, waiting = self._waiters.get(request_id, (None, []))
        if answer in waiting:
            waiting.remove(answer)
            self._abort_unheard(request_id)

    def _abort_unheard(self, request_id: str) -> None:
        """Abort a request if nobody waits for it."""
        if request_id in self._waiters and not self._waiters[request_id][1] and not self.streaming.holds(request_id):
            self.abort(request_id)

    def abort(self, request_id: str) -> None:
        if (answer := self.engine.abort(request_id)) is not None:
            self._answer(answer)

    def close(self, conversation: str) -> None:
        if (answer := self.engine.close(conversation)) is not None:
            self._answer(answer)

    def stats(self) -> EngineStats:
        stats = self.engine.stats()
        stats.seconds_busy, stats.seconds_idle = self._busy, self._idle
        return stats

    def carry_out(
        self, command: Callable[[_Loop], T], answer: Future[T], *, between_rounds: bool, always: bool
    ) -> None:
        """Run a command and answer with its result. `between_rounds` defers it to the end of a lockstep round."""

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                if self._end_reason and not always:
                    raise self._shortage or EngineError(self._end_reason)
                answer.set_result(command(self))
            except (EngineError, OutOfMemory) as error:
                answer.set_exception(error)

        if between_rounds and not self.engine.swappable:
            self._between_rounds.append(run)
        else:
            run()

    def _run_commands(self) -> bool:
        """Run the commands in the queue. While there is nothing to decode, wait for more. Return False if the loop must
        end."""
        while True:
            if self._between_rounds and self.engine.swappable:
                for run in self._between_rounds:
                    run()
                self._between_rounds.clear()
            if self.engine.busy and self.commands.empty():
                return True
            start = time.monotonic()
            try:
                command = self._next_command()
            except Empty:
                command = _nothing
            self._idle += time.monotonic() - start
            if command is None:
                return False
            command(self)
            self._deliver()

    def _next_command(self) -> Callable[[_Loop], None] | None:
        """Wait for a command. Raises Empty when a pull has to be answered though none came."""
        until = self.streaming.next_time
        return self.commands.get(timeout=None if until is None else max(0.0, until - time.monotonic()))

    def _serve_without_engine(self) -> None:
        while True:
            self._deliver()
            with suppress(Empty):
                command = self._next_command()
                if command is None:
                    return
                command(self)

    def _deliver(self) -> None:
        for request_id in self.streaming.deliver():
            self._abort_unheard(request_id)

    def _answer(self, answer: Answer) -> None:
        _, waiting = self._waiters.pop(answer.id)
        self.streaming.end(answer)
        for future in waiting:
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(answer, Refusal):
                future.set_exception(answer.error)
            else:
                future.set_result(answer)

    def _refuse_everything(self, reason: str) -> None:
        """Fail all requests in flight, pending commands and later calls, so that no caller waits forever."""
        self._end_reason = reason
        for request_id in list(self._waiters):
            self._answer(Refusal(request_id, self._refused(f"request {request_id}: ")))
        while self._between_rounds:
            self._between_rounds.pop()()
        self._deliver()

    def _refused(self, prefix: str = "") -> EngineError:
        """Return the error of a request that the ended loop does not serve."""
        kind = EngineError if self._shortage is None else EngineOutOfMemory
        return kind(prefix + self._end_reason)


def _nothing(loop: _Loop) -> None:
    pass


def _same(one: GenerateRequest, other: GenerateRequest) -> bool:
    return one.sampling == other.sampling and np.array_equal(one.prompt, other.prompt)
