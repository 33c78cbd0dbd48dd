"""vLLM behind the Engine protocol: the service that starts vLLM's process, sends it requests, and swaps its weights.

A version is read and verified here while vLLM decodes, and the trainer's network computes its log-probs of a probe.
vLLM maps the version's bytes, loads the layers that changed, and computes the probe too. Answers of the new version
leave vLLM's process only if both agree.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from etude.engine.probe import BOUNDS, PROMPT, SAMPLED, TEMPERATURES, compare, prompts
from etude.engine.protocol import (
    Delivery,
    EngineError,
    EngineInfo,
    EngineOutOfMemory,
    EngineStats,
    GenerateRequest,
    Generation,
    NumericsRefused,
    Sampling,
    UpdateRefused,
)
from etude.engine.vllm.child import Child, ChildDied, checked_interpreter
from etude.engine.vllm.reference import Reference
from etude.engine.vllm.replica import Replica, Sums, sums_of
from etude.engine.vllm.settings import settings_of
from etude.recipe.acting import EngineRecipe
from etude.recipe.lora import LoraRecipe
from etude.recipe.precision import PrecisionRecipe
from etude.training.compute import DTYPES
from etude.weights import CHUNK_BYTES, DoesNotFit, Manifest, WeightsError, WeightStore, read_held

log = logging.getLogger(__name__)
START_SECONDS = 280.0
"""vLLM's start takes 25 s on an idle machine of two cores, and two minutes on a busy one."""
RESTARTS = 5
"""So many times a process that died is replaced. Requests in flight are sent again."""


_COUNTERS = [field.name for field in fields(EngineStats) if field.name not in ("version", "running", "waiting")]


@dataclass(frozen=True, slots=True)
class _Version:
    number: int
    sums: Mapping[str, Sums]
    """Checksums of its tensors, by their published names."""
    reference: Reference
    replica: Replica | None
    """Its bytes; None for the version that vLLM reads from the checkpoint."""


class VllmService:
    """Started as `etude.engine.vllm.service:VllmService`, with the arguments of the built-in engine's service."""

    def __init__(
        self,
        model_folder: str | Path,
        recipe: Mapping[str, Any],
        dtype: str,
        threads: int,
        store: str | None = None,
        version: int = 0,
        lockstep: bool = False,
        precision: Mapping[str, Any] | None = None,
        lora: Mapping[str, Any] | None = None,
        device: str = "cpu",
    ) -> None:
        """Start vLLM with the weights in `model_folder`, which are those of `version`; if `store` has a newer one, load
        it. Raises EngineError if vLLM is not there or cannot serve this model as the trainer computes it."""
        self._recipe = EngineRecipe.model_validate(recipe)
        self._settings = settings_of(
            Path(model_folder),
            self._recipe,
            dtype,
            device=device,
            lockstep=lockstep,
            precision=PrecisionRecipe.model_validate(precision or {}),
            lora=LoraRecipe.model_validate(lora or {}),
        )
        self._interpreter = checked_interpreter(self._recipe.vllm.python, any_version=self._recipe.vllm.any_version)
        self._threads = threads or len(os.sched_getaffinity(0))
        self._bound = BOUNDS[dtype]
        self._store = WeightStore(store) if store else None
        reference = Reference.of_folder(Path(model_folder), DTYPES[dtype])
        self._first = self._current = _Version(version, sums_of(reference.tensors()), reference, None)
        self._updating = asyncio.Lock()
        self._restarting: asyncio.Task[None] | None = None
        self._restarts = 0
        self._ended = False
        self._refusal: str | None = None
        """Why the current version's log-probs are refused."""
        self._stats = self._before_restart = EngineStats(version)
        if self._store is not None and (latest := self._store.latest()) is not None and latest > version:
            try:
                self._current = self._read(latest)
            except WeightsError as error:
                raise UpdateRefused(f"cannot start on version {latest}: {error}") from error
        # The constructor waits for vLLM. What is asynchronous in that runs in a thread, with a loop of its own.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, self._start()).result()

    async def info(self) -> EngineInfo:
        config = self._first.reference.config
        return EngineInfo(
            self._current.number,
            self._recipe.context,
            config.vocab_size,
            config.moe_layers,
            config.num_experts_per_tok,
            self._settings.block,
        )

    async def generate(self, request: GenerateRequest) -> Generation:
        """Return the answer to a request. A repeated call for a request in flight waits for the same answer."""
        try:
            answer: Generation = await self._call("generate", request)
        except asyncio.CancelledError:
            self._child.tell("abandon", request.id)
            raise
        return answer

    async def begin(self, request: GenerateRequest, consumer: str, *, first: bool) -> None:
        await self._call("begin", request, consumer, first)

    async def pull(self, consumer: str, after: int, *, wait: float = 5.0, every: float = 0.05) -> Delivery:
        delivery: Delivery = await self._call("pull", consumer, after, wait, every)
        return delivery

    async def abort(self, request_id: str) -> None:
        await self._call("abort", request_id)

    async def open(self, conversations: list[str]) -> None:
        """A hint, of which vLLM makes no use."""

    async def close(self, conversation: str) -> None:
        await self._call("close", conversation)

    async def stats(self) -> EngineStats:
        """Return the load, or the last one known while vLLM is being restarted. Counters go on over its restarts."""
        if self._restarting is None or self._restarting.done():
            stats: EngineStats = await self._call("stats")
            before = self._before_restart
            self._stats = replace(stats, **{name: getattr(stats, name) + getattr(before, name) for name in _COUNTERS})
        return replace(self._stats)

    async def update(self, version: int) -> None:
        async with self._updating:
            if version == self._current.number:
                if self._refusal:
                    raise NumericsRefused(f"version {version}: {self._refusal}")
                return
            if self._store is None:
                raise UpdateRefused(f"version {version}: this engine was started without a weight store")
            try:
                target = await asyncio.to_thread(self._read, version)
            except WeightsError as error:
                raise UpdateRefused(f"version {version} could not be loaded: {error}") from error
            before = self._current
            while self._current is not target:
                child = self._child
                try:
                    await self._swap(child, target)
                except ChildDied as death:
                    # The next process begins with the current version, and with another probe.
                    await self._restart(child, death)
            if before.replica is not None:
                before.replica.close()
            if self._refusal:
                raise NumericsRefused(f"version {version}: {self._refusal}")

    async def shutdown(self) -> None:
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """End vLLM's process; requests in flight fail."""
        self._ended = True
        self._child.end()

    async def _swap(self, child: Child, target: _Version) -> None:
        """Load a version into a process, and compare its log-probs."""
        probe = self._probe
        expected = await asyncio.to_thread(target.reference.logprobs, probe)
        try:
            await _send(child, target, self._current.sums)
            self._current = target
            found = await child.call("probe", list(probe))
            self._refusal = self._bound.refusal(compare(expected[:, PROMPT - 1 :], np.stack(found)[:, PROMPT - 1 :]))
            await child.call("verdict", self._refusal)
        except (ChildDied, EngineOutOfMemory):
            raise
        except EngineError as error:
            # vLLM may have loaded a part of it, and cannot go back.
            child.end()
            await self._restart(child, error)
            raise UpdateRefused(f"version {target.number} could not be loaded: {error}") from error

    async def _start(self) -> None:
        """Start vLLM with the current version, and check its log-probs."""
        current, first = self._current, self._first
        child = await asyncio.to_thread(
            Child,
            self._interpreter,
            self._settings,
            first.number,
            self._recipe.cache_at_swap,
            self._threads,
            START_SECONDS,
        )
        try:
            if current is not first:
                await _send(child, current, first.sums)
                await child.call("verdict", None)
            await self._check_start(child, current.reference)
        except BaseException:
            child.end()
            raise
        self._child, self._current, self._refusal = child, current, None

    async def _check_start(self, child: Child, reference: Reference) -> None:
        """Compare log-probs of ids that vLLM samples. They are the probe of later versions."""
        rows = prompts(reference.config.vocab_size)
        requests = [
            GenerateRequest(f"probe-{i}", row, Sampling(SAMPLED, (), temperature, seed=i))
            for i, (row, temperature) in enumerate(zip(rows, TEMPERATURES, strict=True))
        ]
        answers: list[Generation] = await asyncio.gather(*(child.call("generate", request) for request in requests))
        self._probe = np.concatenate((rows, np.stack([answer.tokens for answer in answers])), 1)
        expected = await asyncio.to_thread(reference.logprobs, self._probe, TEMPERATURES)
        found = compare(expected[:, PROMPT - 1 :], np.stack([answer.logprobs for answer in answers]))
        log.info("vLLM's log-probs at its start: %s", found)
        if refusal := self._bound.refusal(found):
            raise NumericsRefused(f"vLLM, at its start: {refusal}")

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call vLLM's process. If it dies, it is replaced and called again, but not if it ran out of memory: that would
        happen again."""
        while True:
            child = self._child
            try:
                return await child.call(method, *arguments)
            except ChildDied as death:
                await self._restart(child, death)

    async def _restart(self, dead: Child, reason: EngineError) -> None:
        """Replace a process that died, unless somebody else has, or does so now."""
        if self._child is not dead:
            return
        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.create_task(self._replace(reason))
        await asyncio.shield(self._restarting)

    async def _replace(self, reason: EngineError) -> None:
        if self._ended or self._restarts >= RESTARTS:
            raise EngineError(f"vLLM is not restarted again after {self._restarts} times: {reason}")
        self._restarts += 1
        self._before_restart = self._stats
        log.warning("vLLM is restarted: %s", reason)
        await self._start()

    def _read(self, number: int) -> _Version:
        """Read and verify a version: from the trainer's memory if it is on this machine, else from the store."""
        assert self._store is not None
        manifest = self._store.manifest(number)
        if not isinstance(manifest, Manifest):
            raise DoesNotFit(f"it is in the format {manifest.format} of an older run, which the built-in engine reads")
        current = self._current
        have = (current.number, current.replica.tensors) if current.replica is not None else None
        tensors = read_held(self._store.location, manifest) or self._store.read(number, have=have)
        own = self._first.sums.keys()
        if odd := sorted(own ^ tensors.keys()):
            raise DoesNotFit(f"{len(odd)} tensor names differ from the model's, {odd[0]!r} first")
        sums = {entry.name: entry.sums for entry in manifest.tensors}
        replica = Replica(number, tensors, sums, self._first.reference.slots)
        return _Version(number, sums, self._first.reference.at(replica.tensors), replica)


async def _send(child: Child, version: _Version, loaded: Mapping[str, Sums]) -> None:
    assert version.replica is not None
    seconds = await child.call(
        "update", version.number, version.replica.path, version.replica.groups(loaded), CHUNK_BYTES
    )
    log.info("version %d: stood still after %.3f s, loaded in %.3f s, went on after %.3f s", version.number, *seconds)
