"""What a client asks, whichever protocol it speaks. Each protocol (`dialects`) translates its requests into a
Question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from etude.trace.conversation.messages import Role

Function: TypeAlias = Mapping[str, Any]
"""A tool that a client offers: name, description and the JSON schema `parameters`."""


class SaidCall(NamedTuple):
    id: str
    name: str
    arguments: str
    """The arguments' JSON; of a call that did not parse, the call as the model wrote it."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the conversation that a client sends. Content other than text is refused before."""

    role: Role
    text: str = ""
    thinking: str = ""
    calls: tuple[SaidCall, ...] = ()
    answers: str = ""
    """Of a tool's output: the id of the call that it answers."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the answer is to be sampled."""

    max_tokens: int | None = None
    """None: as many as the server and the context allow."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    """None: another one for each request."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it."""
    stop_ids: tuple[int, ...] | None = None
    """Token ids that end the answer; None: those that end a turn of the chat format."""


@dataclass(frozen=True, slots=True)
class Question:
    said: tuple[Said, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    """A text or token ids to continue, in place of a conversation."""
    functions: tuple[Function, ...] = ()
    wanted: Wanted = Wanted()
    model: str = ""
    """Name of the model as the client wrote it."""
