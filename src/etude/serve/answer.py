"""What a client gets: the events of an answer, which each protocol (`dialects`) writes in its own words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from etude.engine.protocol import FloatArray, IntArray
from etude.serve.question import SaidCall


class Tokens(NamedTuple):
    """The tokens sampled since the event before."""

    ids: list[int]
    logprobs: list[float]


class Delta(NamedTuple):
    """More of the answer's thinking or text."""

    kind: Literal["thinking", "text"]
    text: str
    tokens: Tokens


class CallMade(NamedTuple):
    """A call in the answer, once it is complete."""

    call: SaidCall
    tokens: Tokens


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer: the last event of each that does not fail."""

    text: str
    thinking: str
    calls: tuple[SaidCall, ...]
    finish: Finish
    stopped_by: str | None
    """The stop text that ended the answer."""
    prompt: IntArray
    tokens: IntArray
    """All sampled tokens, also those after a stop text or of a call that did not parse."""
    logprobs: FloatArray
    versions: IntArray
    thinking_tokens: int
    cached_tokens: int
    rest: Tokens
    """The tokens sampled since the event before."""


Event: TypeAlias = Delta | CallMade | Answer
