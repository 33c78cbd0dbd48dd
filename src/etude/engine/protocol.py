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


class EngineError(Exception):
    """The engine could not serve a request. What the model generates is never the reason."""


class ContextExceeded(EngineError):
    """The prompt leaves no room for a single new token."""


class UpdateRefused(EngineError):
    """A weights version cannot be loaded or verified, or does not fit. The engine keeps its current version."""


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
    dense models. The last position has trace.UNKNOWN_EXPERT, because its token was not fed to the network."""
    experts_from: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    version: int
    context: int
    vocab_size: int
    moe_layers: int
    top_k: int


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
    - A request that begins after `update` returned never reads a cache computed with older weights.
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
