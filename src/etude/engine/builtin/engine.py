"""The built-in engine: continuous batching with a cache of earlier tokens. It is synchronous; service.py runs it in
a thread.

One `step` admits requests and then decodes one step for all live rows: each row feeds its pending token, plus a drafted
token if it has one, and yields one or two new tokens. Python code runs per step and per request, never per token:
`Rows` holds the state of all rows in arrays, and a step indexes them with the array of live rows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import torch

from etude.engine.builtin.feeding import Feeding
from etude.engine.builtin.rows import Flags, Ints, Rows
from etude.engine.builtin.sampling import Stream, Tempered, logprobs, uniforms
from etude.engine.builtin.scheduler import Aborted, Admission, Scheduler
from etude.engine.builtin.speculation import Draft, Sampled, propose, verify
from etude.engine.protocol import (
    ContextExceeded,
    EngineError,
    EngineInfo,
    EngineStats,
    FloatArray,
    GenerateRequest,
    Generation,
    IntArray,
    Refusal,
    StopReason,
    UpdateRefused,
    Usage,
)
from etude.model import Cache, Transformer, prepare, serve
from etude.recipe.acting import EngineRecipe
from etude.weights import Tensors, WeightsError
from etude.weights.torch_bridge import into_module

DRAFTED_SLOTS = 8
"""Maximum number of slots for which `speculate = "auto"` drafts. With more, drafting was slower (measured on CPUs)."""


Answer = Generation | Refusal


@dataclass(slots=True)
class _Ticket:
    request: GenerateRequest
    usage: Usage
    since: float
    """Monotonic time at which the request arrived; once it runs, the time at which it began to run."""
    abandoned: bool = False
    """Whether the request was aborted during a lockstep round. It still runs to its end, so that batches do not
    change."""


class BuiltinEngine:
    """Decodes requests in batches. A caller submits requests and calls `step` until it has returned all answers."""

    def __init__(self, model: Transformer, recipe: EngineRecipe, *, version: int = 0, lockstep: bool = False) -> None:
        config = model.config
        few = recipe.slots <= DRAFTED_SLOTS and config.num_nextn_predict_layers > 0
        self.drafting = recipe.speculate == "always" or (recipe.speculate == "auto" and few)
        if self.drafting and not config.num_nextn_predict_layers:
            raise EngineError('engine.speculate is "always" but the model has no MTP layer; set it to "never"')
        if recipe.context > config.max_position_embeddings:
            raise EngineError(
                f"engine.context is {recipe.context} but the model has only {config.max_position_embeddings} positions"
            )
        serve(model)
        self._model = model.eval().requires_grad_(False)
        self._scheduler = Scheduler(
            slots=recipe.slots,
            cache_slots=recipe.cache_slots,
            context=recipe.context,
            lookahead=int(self.drafting),
            lockstep=lockstep,
            cache_at_swap=recipe.cache_at_swap,
            version=version,
        )
        dtype = model.embed_tokens.weight.dtype
        self._device = model.embed_tokens.weight.device
        self._cache = Cache(
            config, self._scheduler.rows, recipe.context, dtype, self._device, invariant=model.invariant
        )
        self._rows = Rows(
            self._scheduler.rows, recipe.context, config.moe_layers, config.num_experts_per_tok, config.vocab_size
        )
        self._tickets: dict[str, _Ticket] = {}
        self._live: list[str] = []
        self._active: Ints = np.zeros(0, np.int64)
        """Indices of the cache rows that decode now, in the order in which their requests (`_live`) began."""
        self._draft = Draft.none(0, config.vocab_size, self._device)
        self.counters = EngineStats(version=version)
        self._rests = False

    @property
    def info(self) -> EngineInfo:
        config = self._model.config
        return EngineInfo(
            version=self.counters.version,
            context=self._rows.context,
            vocab_size=config.vocab_size,
            moe_layers=config.moe_layers,
            top_k=config.num_experts_per_tok,
        )

    @property
    def busy(self) -> bool:
        return self._scheduler.busy and not self._rests

    @property
    def swappable(self) -> bool:
        """Whether weights may be swapped now. They may not during a lockstep round, in which one request of every open
        conversation runs to its end: its results would depend on when the weights arrive."""
        return not self._scheduler.in_round

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. Raises EngineError if it is invalid."""
        self._check(request)
        self._scheduler.submit(request)
        self._tickets[request.id] = _Ticket(request, Usage(prompt_tokens=request.prompt.size), time.monotonic())

    def open(self, conversations: list[str]) -> None:
        self._scheduler.open(conversations)

    def close(self, conversation: str) -> Answer | None:
        """Close a conversation. Return the empty answer to the request that it still had waiting, if there is one."""
        orphan = self._scheduler.close(conversation)
        return None if orphan is None else self._rows.empty_generation(orphan, self._tickets.pop(orphan.id).usage)

    def sampled_since(self, request_id: str, start: int) -> tuple[IntArray, FloatArray, IntArray] | None:
        """Return tokens, log-probs and versions of a running request from its token `start` on; None if the request
        does not run."""
        if (row := self._scheduler.running_row(request_id)) is None:
            return None
        return self._rows.sampled_since(row, start)

    def abort(self, request_id: str) -> Answer | None:
        """Abort a request, and return its answer with the tokens sampled so far. None if no such request is in
        flight."""
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.abandoned:
            return None
        state = self._scheduler.abort(request_id)
        if state is Aborted.RUNNING:
            index = self._live.index(request_id)
            answer = self._end(request_id, StopReason.ABORTED)
            others = np.delete(np.arange(self._active.size), index)
            self._keep(others)
            if self.drafting:
                self._draft = self._draft.select(torch.from_numpy(others))
            return answer
        if state is Aborted.BOUND:
            ticket.abandoned = True
            if request_id in self._live:
                row = self._scheduler.row(request_id)
                return self._rows.generation(row, ticket.request, StopReason.ABORTED, replace(ticket.usage))
            return self._rows.empty_generation(ticket.request, replace(ticket.usage))
        del self._tickets[request_id]
        ticket.usage.seconds_waiting = time.monotonic() - ticket.since
        return self._rows.empty_generation(ticket.request, ticket.usage)

    def swap(self, version: int, tensors: Tensors, *, delta: bool) -> None:
        """Use these weights from the next decode step on. Raises UpdateRefused, and changes nothing, if they do not fit
        the model. `delta` says whether the version was stored as a delta, for the statistics."""
        try:
            into_module(self._model, tensors)
        except WeightsError as error:
            raise UpdateRefused(f"version {version} does not fit the engine's model: {error}") from error
        prepare(self._model)
        self._scheduler.swapped(version)
        self.counters.version = version
        self.counters.swaps += 1
        self.counters.deltas_applied += int(delta)

    def rest(self) -> None:
        """Move weights and cache to the CPU, and decode nothing, until `wake`: another process needs the GPU. Requests
        wait. Weights can be swapped meanwhile."""
        self._rests = True
        self._move("cpu")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Go on where `rest` interrupted."""
        if self._rests:
            self._move(self._device)
            self._rests = False

    def _move(self, device: torch.device | str) -> None:
        self._model.to(device)
        prepare(self._model)  # what it caches is not moved
        self._cache.move(device)
        self._draft = self._draft.to(device)

    def stats(self) -> EngineStats:
        return replace(self.counters, running=self._scheduler.running, waiting=self._scheduler.waiting)

    @torch.inference_mode()
    def step(self) -> list[Answer]:
        """Admit requests, decode one step, and return the answers to the requests that ended."""
        if self._rests:
            return []
        admissions = self._scheduler.admit()
        if admissions:
            self._begin(admissions)
        if not self._active.size:
            return []
        return self._step_with_drafts() if self.drafting else self._step()

    def _check(self, request: GenerateRequest) -> None:
        vocab, context, sampling = self._model.config.vocab_size, self._rows.context, request.sampling
        problem = ""
        if request.id in self._tickets:
            problem = "another request with this id is in flight"
        elif request.prompt.ndim != 1 or request.prompt.size == 0:
            problem = f"the prompt must be a list of at least one token, found shape {request.prompt.shape}"
        elif not 0 <= int(request.prompt.min()) <= int(request.prompt.max()) < vocab:
            problem = f"prompt ids must be in [0, {vocab})"
        elif not all(0 <= stop < vocab for stop in sampling.stop):
            problem = f"stop ids must be in [0, {vocab}), found {sampling.stop}"
        elif sampling.max_tokens < 1 or not sampling.temperature >= 0 or not 0 < sampling.top_p <= 1:
            problem = f"expected max_tokens >= 1, temperature >= 0 and top_p in (0, 1], found {sampling}"
        if problem:
            raise EngineError(f"request {request.id}: {problem}")
        if request.prompt.size >= context:
            raise ContextExceeded(
                f"request {request.id}: a prompt of {request.prompt.size} tokens fills the context of {context} tokens"
            )

    def _begin(self, admissions: list[Admission]) -> None:
        now = time.monotonic()
        self._copy([admission for admission in admissions if admission.source != admission.row])
        for admission in admissions:
            request, reused = admission.request, admission.reused
            ticket = self._tickets[request.id]
            ticket.usage.seconds_waiting, ticket.since = now - ticket.since, now
            ticket.usage.cached_tokens, ticket.usage.cached_version = reused, admission.oldest
            self.counters.cached_tokens += reused
            self.counters.prefilled_tokens += request.prompt.size - 1 - reused
            self._rows.begin(admission.row, request, reused)
        self._live += [admission.request.id for admission in admissions]
        if self.drafting:
            fresh = np.full(len(admissions), -1)
            self._draft = self._draft.select(torch.from_numpy(np.concatenate((np.arange(self._active.size), fresh))))
        self._active = np.concatenate((self._active, [admission.row for admission in admissions]))

    def _copy(self, admissions: list[Admission]) -> None:
        """Copy the cached prefixes (entries and routed experts) that new requests reuse from other rows. Rows with the
        same prefix are copied in one operation."""
        shared: dict[tuple[int, int], list[int]] = defaultdict(list)
        for admission in admissions:
            shared[admission.source, admission.reused].append(admission.row)
        for (source, length), targets in shared.items():
            self._cache.copy_prefix(source, targets, length)
            self._rows.experts[targets, :length] = self._rows.experts[source, :length]

    def _step(self) -> list[Answer]:
        rows, active = self._rows, self._active
        positions = rows.position[active]
        feeding = Feeding.of(rows, active, np.zeros_like(active), self._cache)
        tokens, pending = feeding.tokens()
        out = self._model.extend(tokens, feeding.step, pending)
        temperatures, top_ps = torch.from_numpy(rows.temperatures[active]), torch.from_numpy(rows.top_ps[active])
        tempered = Tempered.of(out.logits_rv, temperatures, top_ps)
        tokens = tempered.draw(uniforms(rows.seeds[active], positions + 1, Stream.TOKEN))
        totals = tempered.totals()
        sampled = Sampled(
            tokens_b2=tokens[:, None],
            logprobs_b2=logprobs(tempered.weights_bv, totals, tokens)[:, None],
            accepted_b=torch.zeros_like(tokens, dtype=torch.bool),
            finite_b=torch.isfinite(totals),
        ).on_host()
        feeding.write_experts(out.experts_tlk)
        return self._end_all(sampled, *self._take(sampled))

    def _step_with_drafts(self) -> list[Answer]:
        rows, active, draft = self._rows, self._active, self._draft
        positions, seeds, temperatures = rows.position[active], rows.seeds[active], rows.temperatures[active]
        there = draft.valid_b.numpy(force=True)
        feeding = Feeding.of(rows, active, there.astype(np.int64), self._cache)
        tokens, pending = feeding.tokens()
        # A row without a draft gets its pending token once more.
        tokens.index_copy_(
            0, pending + draft.valid_b, torch.where(draft.valid_b, draft.tokens_b, tokens.index_select(0, pending))
        )
        # A row without a draft has logits at one position only: its second column repeats the first and is never used.
        read_b2 = torch.stack((pending, pending + draft.valid_b), dim=1)
        out = self._model.extend(tokens, feeding.step, read_b2.flatten())
        sampled = verify(
            out.logits_rv.unflatten(0, (-1, 2)),
            draft,
            torch.from_numpy(temperatures),
            seeds,
            positions + 1,
            torch.from_numpy(rows.top_ps[active]),
        ).on_host()
        feeding.write_experts(out.experts_tlk)
        ahead = sampled.accepted_b.numpy()
        rows.drafted[active] += there
        rows.accepted[active] += ahead
        self.counters.drafted += int(there.sum())
        self.counters.accepted += int(ahead.sum())
        stopped, done = self._take(sampled)
        # The draft head also processes rows that end in this step, because their entries stay cached for reuse. Entries
        # of a rejected draft are overwritten when its position is fed again.
        on = ~done
        following, read = feeding.following((feeding.pending_b + sampled.accepted_b)[torch.from_numpy(on)])
        logits = self._model.draft(out.hidden_th, following, feeding.step, read)
        answers = self._end_all(sampled, stopped, done)
        self._draft = propose(logits, torch.from_numpy(temperatures[on]), seeds[on], positions[on] + 2 + ahead[on])
        return answers

    def _take(self, sampled: Sampled) -> tuple[Flags, Flags]:
        """Record a step's tokens. Return which live rows sampled a stop id, and which are done for any reason."""
        rows, active, version = self._rows, self._active, self.counters.version
        positions = rows.position[active]
        tokens_b2, logprobs_b2 = sampled.tokens_b2.numpy(), sampled.logprobs_b2.numpy()
        rows.record(active, positions + 1, tokens_b2[:, 0], logprobs_b2[:, 0], version)
        stopped = rows.stops(active, tokens_b2[:, 0])
        two = sampled.accepted_b.numpy() & ~stopped & (positions + 2 < rows.limit[active])
        if two.any():
            again = active[two]
            rows.record(again, positions[two] + 2, tokens_b2[two, 1], logprobs_b2[two, 1], version)
            stopped[two] = rows.stops(again, tokens_b2[two, 1])
        rows.position[active] = rows.filled[active] = positions + 1 + two
        self.counters.decode_steps += 1
        self.counters.sampled_tokens += active.size + int(two.sum())
        return stopped, stopped | (rows.position[active] + 1 >= rows.limit[active]) | ~sampled.finite_b.numpy()

    def _end_all(self, sampled: Sampled, stopped: Flags, done: Flags) -> list[Answer]:
        """End the requests of the rows that are `done`; the others stay live."""
        answers: list[Answer] = []
        for index in np.flatnonzero(done).tolist():
            request_id = self._live[index]
            if not bool(sampled.finite_b[index]):
                answers += self._fail(request_id)
                continue
            abandoned = self._tickets[request_id].abandoned
            answer = self._end(request_id, StopReason.STOP if stopped[index] else StopReason.LENGTH)
            answers += [] if abandoned else [answer]
        if done.any():
            self._keep(np.flatnonzero(~done))
        return answers

    def _end(self, request_id: str, stop: StopReason) -> Generation:
        ticket, row = self._tickets.pop(request_id), self._scheduler.row(request_id)
        ticket.usage.seconds_running = time.monotonic() - ticket.since
        generation = self._rows.generation(row, ticket.request, stop, ticket.usage)
        self._scheduler.finish(request_id, generation.tokens)
        return generation

    def _fail(self, request_id: str) -> list[Answer]:
        """Fail a request whose logits are not finite. Its cache row is zeroed, because even a masked NaN would spoil
        the next request in that row."""
        ticket, row = self._tickets.pop(request_id), self._scheduler.row(request_id)
        self._scheduler.discard(request_id)
        self._cache.entries[:, row] = 0
        error = EngineError(
            f"request {request_id}: version {self.counters.version} computed logits that are not finite"
        )
        return [] if ticket.abandoned else [Refusal(request_id, error)]

    def _keep(self, indices: Ints) -> None:
        """Keep only the live rows at these indices."""
        self._live = [self._live[index] for index in indices.tolist()]
        self._active = self._active[indices]
