"""AsyncLLM behind direct calls: generations, aborts, weight updates and probes, with the protocol's own types.

Invariant: from a weight update to the verdict of its probe, no answer and no piece leaves this process. If the verdict
is bad, the requests in flight fail, and so do new ones until a version passes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from etude.cluster.direct_calls import serve
from etude.engine.namespaces import CacheAtSwap, Namespaces
from etude.engine.protocol import (
    ContextExceeded,
    Delivery,
    EngineError,
    EngineStats,
    FloatArray,
    GenerateRequest,
    Generation,
    IntArray,
    NumericsRefused,
    Refusal,
    StopReason,
    Usage,
)
from etude.engine.vllm.inside.experts_of_requests import ExpertsOfRequests
from etude.engine.vllm.inside.plugin import TRANSFER
from etude.engine.vllm.inside.streaming import Sampled, Streaming
from etude.engine.wire import pack, unpack

_COLDEST = 0.01
"""vLLM raises lower temperatures to this one, so they are refused."""
_SEEDS = (1 << 63) - 1


def run(settings: dict[str, Any], tell: Callable[[str], None]) -> None:
    asyncio.run(_run(settings, tell))


async def _run(settings: dict[str, Any], tell: Callable[[str], None]) -> None:
    tell("loading the model")
    arguments = AsyncEngineArgs(**settings["arguments"], weight_transfer_config=WeightTransferConfig(backend=TRANSFER))
    engine = AsyncLLM.from_engine_args(arguments)
    await engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
    await engine.update_weight_version(str(settings["version"]))
    (experts,) = await engine.collective_rpc("etude_record_experts")
    host = Host(engine, settings, experts)
    async with await serve(settings["socket"], partial(Calls, host)):
        watching = asyncio.create_task(host.watch())
        tell("ready")
        while not (engine.errored or watching.done()):  # noqa: ASYNC110  vLLM has no event for its death
            await asyncio.sleep(0.1)
    # vLLM does not come back from a dead worker. The service sees this process end, and is restarted.
    os.killpg(os.getpgrp(), signal.SIGKILL)


class Calls:
    """Answers the calls of one connection: a frame of [method, arguments] each, with the result or an EngineError."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def reply(self, body: bytes) -> bytes:
        method, arguments = unpack(body)
        try:
            return pack(await getattr(self._host, method)(*arguments))
        except EngineError as error:
            return pack(error)
        except Exception as error:  # noqa: BLE001  the caller hears of it
            if self._host.dead or isinstance(error, EngineDeadError):
                os.killpg(os.getpgrp(), signal.SIGKILL)
            return pack(EngineError(f"vLLM, {method}: {type(error).__name__}: {str(error)[:500]}"))

    def end(self) -> None:
        pass


@dataclass(slots=True)
class _Running:
    """A request in flight. A request that is sent twice runs once."""

    request: GenerateRequest
    begun: float
    task: asyncio.Task[Generation] | None = None
    callers: int = 0
    aborted: bool = False
    failed: EngineError | None = None
    """Why the request fails, though it is still in flight."""
    started: float | None = None
    """Time of the first token."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """By the time at which vLLM's answer arrived; pieces need them before vLLM says which they are."""


class Host:
    def __init__(self, engine: AsyncLLM, settings: dict[str, Any], experts: list[int]) -> None:
        """`experts` are the number of layers that route, and of experts of a token."""
        self._engine = engine
        self._experts = ExpertsOfRequests(engine, *experts)
        self._context: int = settings["arguments"]["max_model_len"]
        self._vocab: int = settings["vocab_size"]
        self._slots: int = settings["arguments"]["max_num_seqs"]
        self._version: int = settings["version"]
        self._first_version: int = self._version
        self._cache_at_swap: CacheAtSwap = settings["cache_at_swap"]
        self._namespaces = Namespaces(self._cache_at_swap)
        self._running: dict[str, _Running] = {}
        self._gate = asyncio.Event()
        """Set unless a version waits for the verdict of its probe."""
        self._gate.set()
        self._streaming = Streaming(self._gate, self._sampled_since)
        self._refused: NumericsRefused | None = None
        self._stats = EngineStats()
        self._counts_steps = ""
        """A request in flight by whose tokens steps are counted, since each step gives one to all that run."""
        self._counted = time.monotonic()

    @property
    def dead(self) -> bool:
        return bool(self._engine.errored)

    async def generate(self, request: GenerateRequest) -> Generation:
        running = self._join(request)
        assert running.task is not None
        return await asyncio.shield(running.task)

    async def begin(self, request: GenerateRequest, consumer: str, first: bool) -> None:
        if self._streaming.begin(request.id, consumer, first=first):
            try:
                self._join(request)
            except EngineError as error:
                self._streaming.end(Refusal(request.id, error))

    async def pull(self, consumer: str, after: int, wait: float, every: float) -> Delivery:
        return await self._streaming.pull(consumer, after, wait, every)

    async def abandon(self, request_id: str) -> None:
        """A caller of `generate` no longer waits. Without any, the request is aborted."""
        running = self._running.get(request_id)
        if running is not None:
            running.callers -= 1
            if not running.callers:
                await self.abort(request_id)

    async def abort(self, request_id: str) -> None:
        if (running := self._running.get(request_id)) is not None:
            running.aborted = True
            await self._engine.abort(request_id)

    async def close(self, conversation: str) -> None:
        self._namespaces.forget(conversation)

    async def stats(self) -> EngineStats:
        self._count_time()
        running = min(len(self._running), self._slots)
        return replace(self._stats, version=self._version, running=running, waiting=len(self._running) - running)

    async def update(self, version: int, path: str, groups: list[list[dict[str, Any]]], chunk: int) -> list[float]:
        """Load a version between two steps. Answers wait for the verdict from here on. Return the seconds until
        everything stood still, of loading, and of going on."""
        begun = time.monotonic()
        self._gate.clear()
        await self._engine.pause_generation(mode="keep", clear_cache=False)
        still = time.monotonic()
        await self._engine.start_weight_update()
        info = {"path": path, "groups": groups, "chunk": chunk}
        await self._engine.update_weights(WeightTransferUpdateRequest(update_info=info))
        await self._engine.finish_weight_update(str(version))
        self._version = version
        loaded = time.monotonic()
        await self._engine.resume_generation()
        self._stats.swaps += 1
        return [still - begun, loaded - still, time.monotonic() - loaded]

    async def probe(self, rows: list[IntArray]) -> list[FloatArray]:
        """Return the log-probs of every id but the first of each row, as the current weights compute them."""
        return list(await asyncio.gather(*(self._score(row) for row in rows)))

    async def verdict(self, refusal: str | None) -> None:
        """Say whether the current version's log-probs are the trainer's, and let its answers out, or fail them."""
        self._refused = NumericsRefused(refusal) if refusal else None
        if refusal:
            for request_id, running in self._running.items():
                running.failed = EngineError(f"request {request_id}: {refusal}")
            await asyncio.gather(*(self._engine.abort(request_id) for request_id in list(self._running)))
        self._gate.set()

    async def watch(self) -> None:
        """Abort the requests of consumers that no longer pull, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            await asyncio.gather(*(self.abort(request_id) for request_id in self._streaming.silent()))

    def _join(self, request: GenerateRequest) -> _Running:
        """Begin a request, or join the same one in flight."""
        running = self._running.get(request.id)
        if running is None:
            self._check(request)
            self._count_time()
            running = self._running[request.id] = _Running(request, time.monotonic())
            running.task = asyncio.create_task(self._serve(running))
            running.task.add_done_callback(self._end)
        elif running.request.sampling != request.sampling or not np.array_equal(running.request.prompt, request.prompt):
            raise EngineError(f"request {request.id} is in flight with another prompt or sampling")
        running.callers += 1
        return running

    def _end(self, task: asyncio.Task[Generation]) -> None:
        # What nobody awaits must not be reported as lost: a consumer gets it as a Refusal.
        if not task.cancelled():
            task.exception()

    def _check(self, request: GenerateRequest) -> None:
        sampling, prompt = request.sampling, request.prompt
        if self._refused is not None and self._gate.is_set():
            raise self._refused
        if prompt.size + 1 > self._context:
            raise ContextExceeded(f"request {request.id}: {prompt.size} ids of a context of {self._context}")
        ids = (*prompt.tolist(), *sampling.stop)
        if not prompt.size or sampling.max_tokens < 1 or not all(0 <= i < self._vocab for i in ids):
            raise EngineError(
                f"request {request.id}: expected a prompt, max_tokens above 0 and ids below {self._vocab}; found "
                f"{prompt.size} ids, max_tokens {sampling.max_tokens}"
            )
        if sampling.temperature < 0 or 0 < sampling.temperature < _COLDEST:
            raise EngineError(
                f"request {request.id}: temperature {sampling.temperature:g}; vLLM takes 0, or {_COLDEST} and more"
            )

    async def _serve(self, running: _Running) -> Generation:
        request, last = running.request, None
        oldest = self._oldest(request.conversation)
        prompt = tokens_input(request.prompt.tolist(), cache_salt=str(oldest))
        try:
            async for output in self._engine.generate(prompt, self._parameters(request), request.id):
                last = self._take(running, output)
                if running.aborted and not output.finished:
                    # The abort came before vLLM knew the request.
                    await self._engine.abort(request.id)
            experts = await self._experts.of(request, len(running.tokens))
            await self._gate.wait()
            if running.failed is not None:
                raise running.failed
            assert last is not None
            answer = self._answer(running, last, oldest)
            answer.experts = experts
            self._streaming.end(answer)
            return answer
        except Exception as error:
            if self.dead or isinstance(error, EngineDeadError):
                raise
            failure = error if isinstance(error, EngineError) else EngineError(f"request {request.id}: {error}")
            self._streaming.end(Refusal(request.id, failure))
            raise failure from error
        finally:
            self._count_time()
            del self._running[request.id]

    def _oldest(self, conversation: str) -> int:
        """Return the oldest version whose cached entries a request may read now, which is the salt of its own. vLLM
        reads only entries with the request's salt, so nothing has to be dropped at a swap."""
        if self._cache_at_swap == "reset":
            return self._version
        if self._cache_at_swap == "keep":
            return self._first_version
        return self._namespaces.of(conversation, self._version)

    def _parameters(self, request: GenerateRequest) -> SamplingParams:
        sampling = request.sampling
        return SamplingParams(
            max_tokens=min(sampling.max_tokens, self._context - request.prompt.size),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed & _SEEDS,
            stop_token_ids=list(sampling.stop),
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            output_kind=RequestOutputKind.DELTA,
        )

    def _take(self, running: _Running, output: RequestOutput) -> RequestOutput:
        (new,) = output.outputs
        if running.started is None and new.token_ids:
            running.started = time.monotonic()
            self._stats.cached_tokens += output.num_cached_tokens or 0
            self._stats.prefilled_tokens += running.request.prompt.size - (output.num_cached_tokens or 0)
        running.tokens += new.token_ids
        running.logprobs += _logprobs(new)
        running.versions += [self._version] * len(new.token_ids)
        self._stats.sampled_tokens += len(new.token_ids)
        if self._counts_steps not in self._running:
            self._counts_steps = running.request.id
        if self._counts_steps == running.request.id:
            self._stats.decode_steps += len(new.token_ids)
        self._streaming.sampled(running.request.id)
        return output

    def _sampled_since(self, request_id: str, start: int) -> Sampled | None:
        running = self._running.get(request_id)
        if running is None or running.failed is not None or start >= len(running.tokens):
            return None
        return (
            np.array(running.tokens[start:], np.int32),
            np.array(running.logprobs[start:], np.float32),
            np.array(running.versions[start:], np.int32),
        )

    def _answer(self, running: _Running, last: RequestOutput, oldest: int) -> Generation:
        request, (new,) = running.request, last.outputs
        count, started = len(running.tokens), running.started or time.monotonic()
        cached = (last.num_cached_tokens or 0) if count else 0
        usage = Usage(
            request.prompt.size,
            cached,
            oldest if cached else -1,
            seconds_waiting=started - running.begun,
            seconds_running=time.monotonic() - started,
        )
        return Generation(
            request.id,
            np.array(running.tokens, np.int32),
            np.array(running.logprobs, np.float32),
            _versions(new, count),
            {"stop": StopReason.STOP, "length": StopReason.LENGTH}.get(new.finish_reason or "", StopReason.ABORTED),
            None,
            request.experts_from,
            usage,
        )

    async def _score(self, row: IntArray) -> FloatArray:
        # One token more than the prompt is always sampled; nothing of it is used.
        parameters = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, prompt_logprobs=0)
        ids, name = row.tolist(), f"probe {time.monotonic_ns()}"
        prompt = tokens_input(ids, cache_salt="probe")
        async for output in self._engine.generate(prompt, parameters, name, priority=-1):
            scored = output.prompt_logprobs
        await self._experts.forget(name)
        return np.array([place[token].logprob for place, token in zip(scored[1:], ids[1:], strict=True)], np.float32)

    def _count_time(self) -> None:
        """Add the time since the last count, in which requests were in flight or not."""
        passed = time.monotonic() - self._counted
        self._counted += passed
        if self._running:
            self._stats.seconds_busy += passed
        else:
            self._stats.seconds_idle += passed


def _logprobs(new: CompletionOutput) -> list[float]:
    return [place[token].logprob for place, token in zip(new.logprobs or (), new.token_ids, strict=True)]


def _versions(new: CompletionOutput, count: int) -> IntArray:
    versions = np.zeros(count, np.int32)
    for span in new.weight_versions or ():
        versions[span.start : span.end] = int(span.version)
    return versions
