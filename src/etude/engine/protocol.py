"""The interface of an inference engine, which generates token ids from a prompt of token ids.

An engine returns everything that training needs: token ids, log-probs under the distribution sampled from, the weights
version of every token and, for mixture-of-experts models, the experts used at every position. This file needs no torch,
so that the harness and rollout workers can use an engine without installing torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
ExpertArray = NDArray[np.uint16]

UNKNOWN_EXPERT = np.uint16(0xFFFF)
"""Marks the experts of a position as unknown. It is that of traces (trace.UNKNOWN_EXPERT), spelled here because an
engine may run in an interpreter that lacks what traces need."""


class EngineError(Exception):
    """The engine could not serve a request. What the model generates is never the reason."""


class ContextExceeded(EngineError):
    """The prompt leaves no room for a single new token."""


class UpdateRefused(EngineError):
    """A weights version cannot be loaded or verified, or does not fit. The engine keeps its current version."""


class NumericsRefused(EngineError):
    """The engine's log-probs differ from the trainer's by more than the bound. `update` raises this after the swap, and
    so does every request, until a later version passes: another engine may serve them."""


class EngineOutOfMemory(EngineError):
    """The engine ran out of memory and answers no more requests until it is restarted. Another engine may serve
    them."""


class StreamsLost(EngineError):
    """The engine does not know a consumer's streamed requests: it was restarted since, or the consumer did not pull for
    so long that they were aborted. Those that matter have to begin again."""


class StopReason(StrEnum):
    STOP = "stop"
    """A stop id was sampled; it is the last token returned."""
    LENGTH = "length"
    """The generation reached `max_tokens` or the end of the context."""
    ABORTED = "aborted"
    """The caller aborted the request; the tokens sampled until then are returned."""


@dataclass(frozen=True, slots=True)
class Sampling:
    max_tokens: int
    stop: tuple[int, ...]
    """Token ids that end the generation."""
    temperature: float = 1.0
    """Sampling temperature. 0 means greedy decoding, with log-probs reported at temperature 1."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    id: str
    prompt: IntArray
    sampling: Sampling
    conversation: str = ""
    """Id of the conversation, or empty. Its requests continue each other, so that cached prefixes can be reused."""
    experts_from: int = 0
    """First position for which the answer must contain the experts used."""


@dataclass(slots=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose entries were in the cache."""
    cached_version: int = -1
    """Oldest version that computed one of these entries; -1 if there are none."""
    drafted: int = 0
    """Tokens that speculative decoding proposed."""
    accepted: int = 0
    """How many drafted tokens verification accepted."""
    seconds_waiting: float = 0.0
    seconds_running: float = 0.0


@dataclass(slots=True)
class Generation:
    id: str
    tokens: IntArray
    """The sampled tokens."""
    logprobs: FloatArray
    versions: IntArray
    """The version that sampled each token. It changes within a generation if weights are swapped in flight."""
    stop: StopReason
    experts: ExpertArray | None
    """Expert ids [positions, MoE layers, top k] of positions `experts_from` to len(prompt) + len(tokens) - 1; None for
    dense models. The last position has UNKNOWN_EXPERT, because its token was not fed to the network."""
    experts_from: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a streamed request, sampled since its last piece."""

    id: str
    start: int
    """Number of tokens in earlier pieces of the request."""
    tokens: IntArray
    logprobs: FloatArray
    versions: IntArray


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that the engine could not serve."""

    id: str
    error: EngineError


@dataclass(frozen=True, slots=True)
class Delivery:
    """What `pull` returns: new pieces, at most one per request, and the answers of requests that ended."""

    number: int
    """Acknowledges the delivery, as the argument `after` of the next pull."""
    items: list[Piece | Generation | Refusal]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    version: int
    context: int
    vocab_size: int
    moe_layers: int
    top_k: int
    block: int = 1
    """Cached prefixes are reused in whole blocks of so many tokens; 0 if the engine caches none."""


@dataclass(slots=True)
class EngineStats:
    """The engine's current load, and counters since it started."""

    version: int = 0
    running: int = 0
    waiting: int = 0
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    decode_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    swaps: int = 0
    deltas_applied: int = 0
    seconds_busy: float = 0.0
    seconds_idle: float = 0.0


@runtime_checkable
class Engine(Protocol):
    """The contract of an engine (tests/contract/engine.py runs it against every implementation).

    - `generate` returns once, with at least one token unless the request was aborted, or raises an EngineError.
    - Every log-prob belongs to the distribution that the token was drawn from, with or without speculation.
    - `update` swaps weights between two decode steps: running generations continue, and their later tokens carry the
      new version. A version that fails verification raises UpdateRefused and changes nothing.
    - What a request that is sent after `update` returned may read of the cache is the policy `engine.cache_at_swap`:
      under "reset", only entries that the new weights computed; under "salt", older ones too if its conversation
      sent a request before the update, but none older than the version of the conversation's first request; under
      "keep", entries of every version. `Usage.cached_version` names the oldest that it read. Generations that an
      update interrupts keep their entries under every policy.
    """

    async def info(self) -> EngineInfo: ...

    async def generate(self, request: GenerateRequest) -> Generation: ...

    async def abort(self, request_id: str) -> None:
        """Abort a request; its `generate` call returns what was sampled so far."""
        ...

    async def open(self, conversations: list[str]) -> None:
        """Announce conversations.

        In lockstep mode the engine decodes only when every open conversation has a request waiting, so that its batches
        do not depend on timing. In other modes this is only a hint.
        """
        ...

    async def close(self, conversation: str) -> None:
        """End a conversation; its cache may be dropped."""
        ...

    async def update(self, version: int) -> None:
        """Load a weights version from the version store; return once the engine uses it."""
        ...

    async def stats(self) -> EngineStats: ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that also delivers tokens while they are sampled.

    A consumer, such as a server's process, begins any number of requests and pulls the news of all of them at once, so
    that the cost does not grow by a call for each token or request. `streams.Streams` is such a consumer.
    """

    async def begin(self, request: GenerateRequest, consumer: str, *, first: bool) -> None:
        """Queue a request whose tokens and answer `pull` delivers. `first` says that the consumer has begun nothing
        before; otherwise StreamsLost is raised if the engine does not know the consumer. A call may be repeated.

        Raises EngineError if a request of this id is in flight for another consumer. Whatever else is wrong with it, or
        goes wrong later, arrives as a Refusal."""
        ...

    async def pull(self, consumer: str, after: int, *, wait: float = 5.0, every: float = 0.05) -> Delivery:
        """Return what is new since the delivery numbered `after` (0: since the beginning).

        It returns a request's first tokens and its answer as soon as they are there; other tokens, of all requests
        together, once `every` seconds; and no items after `wait` seconds without news. A request's pieces come in
        order; its last item is a Refusal or the whole Generation, which alone has the tokens since the last piece.

        A delivery that was not acknowledged is returned again, so a call may be repeated; of two calls at once, the
        earlier returns without items. A consumer that does not pull for `outbox.SILENT_SECONDS` is forgotten, and its
        requests are aborted.

        Raises StreamsLost if the engine does not know the consumer, or not that delivery."""
        ...
