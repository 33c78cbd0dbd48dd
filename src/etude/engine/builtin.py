"""The built-in engine: continuous batching over a cache of latents. Synchronous, in one thread; service.py drives it.

One `step` lets requests begin, then decodes one step for all live rows: the pending token of every row is fed, with its
draft behind it if there is one, and one or two tokens per row come out. Python runs per step and per request, never per
token: live rows are an index array into the arrays of `Rows`, and the cost of a step follows their number.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from etude.engine.prefill import carry_out
from etude.engine.protocol import (
    ContextExceeded,
    EngineError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    Generation,
    StopReason,
    UpdateRefused,
    Usage,
)
from etude.engine.rows import Ints, Rows
from etude.engine.sampling import Stream, Tempered, logprobs, uniforms
from etude.engine.scheduler import Aborted, Admission, Scheduler
from etude.engine.speculation import Draft, propose, verify
from etude.model import LatentCache, Transformer
from etude.recipe.acting import EngineRecipe
from etude.weights import Tensors, WeightsError
from etude.weights.torch_bridge import into_module

WINDOW_STEP = 32
"""Attention looks at whole blocks of this many positions, so that its shapes repeat."""


@dataclass(frozen=True, slots=True)
class Failure:
    id: str
    error: EngineError


Answer = Generation | Failure


@dataclass(slots=True)
class _Ticket:
    request: GenerateRequest
    usage: Usage
    since: float
    """When it arrived, then when it began."""
    forsaken: bool = False
    """Nobody waits for it any more, but lockstep lets it run to its end."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What one decode step gave: column 0 for every row, column 1 where `ahead_b`."""

    tokens_b2: Ints
    logprobs_b2: np.ndarray
    ahead_b: np.ndarray
    finite_b: np.ndarray


class BuiltinEngine:
    def __init__(self, model: Transformer, recipe: EngineRecipe, *, version: int = 0, lockstep: bool = False) -> None:
        config = model.config
        self.drafting = recipe.speculate == "always"
        if self.drafting and not config.num_nextn_predict_layers:
            raise EngineError('engine.speculate is "always" but the model has no MTP layer; set it to "never"')
        if recipe.context > config.max_position_embeddings:
            raise EngineError(
                f"engine.context is {recipe.context} but the model knows {config.max_position_embeddings} positions"
            )
        self._model = model.eval().requires_grad_(False)
        self._scheduler = Scheduler(
            slots=recipe.slots,
            cache_slots=recipe.cache_slots,
            context=recipe.context,
            lookahead=int(self.drafting),
            lockstep=lockstep,
        )
        self._cache = LatentCache(config, self._scheduler.rows, recipe.context, model.embed_tokens.weight.dtype)
        self._rows = Rows(
            self._scheduler.rows, recipe.context, config.moe_layers, config.num_experts_per_tok, config.vocab_size
        )
        self._tickets: dict[str, _Ticket] = {}
        self._live: list[str] = []
        self._active: Ints = np.zeros(0, np.int64)
        """Rows that decode, in the order in which their requests (`_live`) began."""
        self._draft = Draft.none(0, config.vocab_size)
        self.counters = EngineStats(version=version)

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
        return self._scheduler.busy

    @property
    def swappable(self) -> bool:
        """In lockstep weights change between rounds, since a swap's timing must not change a result."""
        return not self._scheduler.in_round

    def submit(self, request: GenerateRequest) -> None:
        self._check(request)
        self._scheduler.submit(request)
        self._tickets[request.id] = _Ticket(request, Usage(prompt_tokens=request.prompt.size), time.monotonic())

    def open(self, conversations: list[str]) -> None:
        self._scheduler.open(conversations)

    def close(self, conversation: str) -> Answer | None:
        """An answer for the request that the conversation had waiting, if it had one."""
        orphan = self._scheduler.close(conversation)
        return None if orphan is None else self._rows.nothing(orphan, self._tickets.pop(orphan.id).usage)

    def abort(self, request_id: str) -> Answer | None:
        """The answer to the request; None if there is no such request any more."""
        ticket = self._tickets.get(request_id)
        if ticket is None or ticket.forsaken:
            return None
        state = self._scheduler.abort(request_id)
        if state is Aborted.RUNNING:
            place = self._live.index(request_id)
            answer = self._end(request_id, StopReason.ABORTED)
            self._keep(np.delete(np.arange(self._active.size), place))
            return answer
        if state is Aborted.BOUND:
            ticket.forsaken = True
            if request_id in self._live:
                row = self._scheduler.row(request_id)
                return self._rows.generation(row, ticket.request, StopReason.ABORTED, replace(ticket.usage))
            return self._rows.nothing(ticket.request, replace(ticket.usage))
        del self._tickets[request_id]
        ticket.usage.seconds_waiting = time.monotonic() - ticket.since
        return self._rows.nothing(ticket.request, ticket.usage)

    def swap(self, version: int, tensors: Tensors, *, delta: bool) -> None:
        """The weights of `version` from the next decode step on. Refused, nothing has changed."""
        try:
            into_module(self._model, tensors)
        except WeightsError as error:
            raise UpdateRefused(f"version {version} does not fit the engine's model: {error}") from error
        self._scheduler.swapped()
        self.counters.version = version
        self.counters.swaps += 1
        self.counters.deltas_applied += int(delta)

    def stats(self) -> EngineStats:
        return replace(self.counters, running=self._scheduler.running, waiting=self._scheduler.waiting)

    @torch.inference_mode()
    def step(self) -> list[Answer]:
        """Lets requests begin, decodes one step, and returns the answers to the requests that ended."""
        admissions = self._scheduler.admit()
        if admissions:
            self._begin(admissions)
        if not self._active.size:
            return []
        step = self._decode_with_drafts() if self.drafting else self._decode()
        self._scheduler.stepped()
        return self._take(step)

    def _check(self, request: GenerateRequest) -> None:
        vocab, context, sampling = self._model.config.vocab_size, self._rows.context, request.sampling
        problem = ""
        if request.id in self._tickets:
            problem = "its id is that of a request in flight"
        elif request.prompt.ndim != 1 or request.prompt.size == 0:
            problem = f"the prompt must be a list of at least one token, found shape {request.prompt.shape}"
        elif not 0 <= int(request.prompt.min()) <= int(request.prompt.max()) < vocab:
            problem = f"prompt ids must be in [0, {vocab})"
        elif not all(0 <= stop < vocab for stop in sampling.stop):
            problem = f"stop ids must be in [0, {vocab}), found {sampling.stop}"
        elif sampling.max_tokens < 1 or not sampling.temperature >= 0:
            problem = f"expected max_tokens >= 1 and temperature >= 0, found {sampling}"
        if problem:
            raise EngineError(f"request {request.id}: {problem}")
        if request.prompt.size >= context:
            raise ContextExceeded(
                f"request {request.id}: a prompt of {request.prompt.size} tokens fills the context of {context}"
            )

    def _begin(self, admissions: list[Admission]) -> None:
        now = time.monotonic()
        for admission in admissions:
            ticket = self._tickets[admission.request.id]
            ticket.usage.seconds_waiting, ticket.since = now - ticket.since, now
            ticket.usage.cached_tokens = admission.reused
            self.counters.cached_tokens += admission.reused
            self._rows.begin(admission.row, admission.request)
        self.counters.prefilled_tokens += carry_out(
            admissions, self._rows, self._model, self._cache, drafting=self.drafting
        )
        self._live += [admission.request.id for admission in admissions]
        fresh = np.full(len(admissions), -1)
        if self.drafting:
            self._draft = self._draft.select(torch.from_numpy(np.concatenate((np.arange(self._active.size), fresh))))
        self._active = np.concatenate((self._active, [admission.row for admission in admissions]))

    def _decode(self) -> _Step:
        rows, active = self._rows, self._active
        positions = rows.position[active]
        tokens_b1 = torch.from_numpy(rows.tokens[active, positions])[:, None]
        slots, starts = torch.from_numpy(active), torch.from_numpy(positions)
        out = self._model.extend(
            tokens_b1, slots, starts, torch.ones_like(starts), self._cache, window=self._window(positions + 1)
        )
        tempered = Tempered.of(out.logits_bnv[:, 0], torch.from_numpy(rows.temperatures[active]))
        tokens = tempered.draw(uniforms(rows.seeds[active], positions + 1, Stream.TOKEN))
        totals = tempered.totals()
        rows.experts[active, positions] = out.experts_bnlk[:, 0].numpy()
        return _Step(
            tokens_b2=tokens[:, None].numpy(),
            logprobs_b2=logprobs(tempered.weights_bv, totals, tokens)[:, None].numpy(),
            ahead_b=np.zeros(active.size, np.bool_),
            finite_b=torch.isfinite(totals).numpy(),
        )

    def _decode_with_drafts(self) -> _Step:
        rows, active, draft = self._rows, self._active, self._draft
        positions, seeds = rows.position[active], rows.seeds[active]
        temperatures = torch.from_numpy(rows.temperatures[active])
        slots, starts = torch.from_numpy(active), torch.from_numpy(positions)
        tokens_b2 = torch.stack((torch.from_numpy(rows.tokens[active, positions]), draft.tokens_b), dim=1)
        there = draft.there_b.numpy()
        window = self._window(positions + 1 + there)
        out = self._model.extend(tokens_b2, slots, starts, draft.there_b + 1, self._cache, window=window)
        verified = verify(out.logits_bnv, draft, temperatures, seeds, positions + 1)
        ahead = verified.accepted_b.numpy()
        experts = out.experts_bnlk.numpy()
        rows.experts[active, positions] = experts[:, 0]
        rows.experts[active[ahead], positions[ahead] + 1] = experts[ahead, 1]
        # The draft head sees every position once, also of rows that end here: their latents are kept for reuse.
        fed = verified.accepted_b + 1
        logits = self._model.draft(
            out.hidden_bnh, verified.tokens_b2, slots, starts, self._cache, lengths_b=fed, window=window
        )
        self._draft = propose(logits, temperatures, seeds, positions + 2 + ahead)
        rows.drafted[active] += there
        rows.accepted[active] += ahead
        self.counters.drafted += int(there.sum())
        self.counters.accepted += int(ahead.sum())
        return _Step(verified.tokens_b2.numpy(), verified.logprobs_b2.numpy(), ahead, verified.finite_b.numpy())

    def _take(self, step: _Step) -> list[Answer]:
        """Writes down what a step gave, and ends the rows that are done."""
        rows, active, version = self._rows, self._active, self.counters.version
        positions = rows.position[active]
        rows.record(active, positions + 1, step.tokens_b2[:, 0], step.logprobs_b2[:, 0], version)
        stopped = rows.stops(active, step.tokens_b2[:, 0])
        two = step.ahead_b & ~stopped & (positions + 2 < rows.limit[active])
        if two.any():
            again = active[two]
            rows.record(again, positions[two] + 2, step.tokens_b2[two, 1], step.logprobs_b2[two, 1], version)
            stopped[two] = rows.stops(again, step.tokens_b2[two, 1])
        rows.position[active] = positions + 1 + two
        self.counters.decode_steps += 1
        self.counters.sampled_tokens += active.size + int(two.sum())
        done = stopped | (rows.position[active] + 1 >= rows.limit[active]) | ~step.finite_b
        if not done.any():
            return []
        answers: list[Answer] = []
        for place in np.flatnonzero(done).tolist():
            request_id = self._live[place]
            if not step.finite_b[place]:
                answers += self._fail(request_id)
                continue
            forsaken = self._tickets[request_id].forsaken
            answer = self._end(request_id, StopReason.STOP if stopped[place] else StopReason.LENGTH)
            answers += [] if forsaken else [answer]
        self._keep(np.flatnonzero(~done))
        return answers

    def _end(self, request_id: str, stop: StopReason) -> Generation:
        ticket, row = self._tickets.pop(request_id), self._scheduler.row(request_id)
        ticket.usage.seconds_running = time.monotonic() - ticket.since
        generation = self._rows.generation(row, ticket.request, stop, ticket.usage)
        self._scheduler.finish(request_id, generation.tokens)
        return generation

    def _fail(self, request_id: str) -> list[Answer]:
        """The network's answer is no number: nothing of the row may be used, now or behind a mask later."""
        ticket, row = self._tickets.pop(request_id), self._scheduler.row(request_id)
        self._scheduler.discard(request_id)
        self._cache.latents[:, row] = 0
        error = EngineError(f"request {request_id}: version {self.counters.version} gave logits that are not finite")
        return [] if ticket.forsaken else [Failure(request_id, error)]

    def _keep(self, places: Ints) -> None:
        """Goes on with the live rows at these places only."""
        self._live = [self._live[place] for place in places.tolist()]
        self._active = self._active[places]
        if self.drafting:
            self._draft = self._draft.select(torch.from_numpy(places))

    def _window(self, ends_b: Ints) -> int:
        longest = int(ends_b.max())
        return min(self._rows.context, -(-longest // WINDOW_STEP) * WINDOW_STEP)
