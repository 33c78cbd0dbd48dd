"""The Engine interface: token ids in, token ids out.

An engine returns what will be trained on: ids, log-probs under the distribution sampled from, the weights version of
every token and, for mixture-of-experts models, the experts used at every position. This file needs no torch, so the
harness and the rollouts can talk to an engine without having torch.
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
    """The engine could not serve a request. Never caused by the model's output."""


class ContextExceeded(EngineError):
    """The prompt leaves no room for a single new token."""


class UpdateRefused(EngineError):
    """A weights version could not be verified or does not fit; the engine keeps serving the one it had."""


class StopReason(StrEnum):
    STOP = "stop"
    """One of the stop ids was sampled (it is the last token returned)."""
    LENGTH = "length"
    """max_tokens or the context was used up."""
    ABORTED = "aborted"
    """The caller aborted the request; what was sampled so far is returned."""


@dataclass(frozen=True, slots=True)
class Sampling:
    max_tokens: int
    stop: tuple[int, ...]
    temperature: float = 1.0
    """0 is greedy; the log-probs reported are then those at temperature 1."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    id: str
    prompt: IntArray
    sampling: Sampling
    conversation: str = ""
    """Id of the conversation. Its requests extend each other, so the engine may keep its cache between them."""
    experts_from: int = 0
    """First position whose experts the caller does not have yet."""


@dataclass(slots=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose latents were found in the cache."""
    drafted: int = 0
    accepted: int = 0
    seconds_waiting: float = 0.0
    seconds_running: float = 0.0


@dataclass(slots=True)
class Generation:
    id: str
    tokens: IntArray
    logprobs: FloatArray
    versions: IntArray
    """The weights version that sampled each token. It changes mid-generation when weights are swapped in flight."""
    stop: StopReason
    experts: ExpertArray | None
    """[positions, MoE layers, top k], for absolute positions experts_from ... len(prompt) + len(tokens) - 1.

    The last sampled token has not been fed to the network: its row holds trace.UNKNOWN_EXPERT. None for dense models.
    """
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
    """Counters since the engine started."""

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

    - `generate` returns once, with at least one token, or raises an EngineError.
    - Every log-prob is that of the distribution the token was drawn from, with or without speculation.
    - `update` swaps between two decode steps: running generations go on, and their later tokens carry the new version.
      A version that fails verification raises UpdateRefused and changes nothing.
    - A request that begins after `update` returned never reads a cache computed with older weights.
    """

    async def info(self) -> EngineInfo: ...

    async def generate(self, request: GenerateRequest) -> Generation: ...

    async def abort(self, request_id: str) -> None: ...

    async def open(self, conversations: list[str]) -> None:
        """Announce conversations. In lockstep mode the engine runs only when every open one has a request waiting, so
        that its batches do not depend on timing; otherwise this is only a hint."""
        ...

    async def close(self, conversation: str) -> None:
        """End a conversation; its cache may be dropped."""
        ...

    async def update(self, version: int) -> None: ...

    async def stats(self) -> EngineStats: ...
