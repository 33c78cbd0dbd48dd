"""The Format interface: how one family of models writes a conversation as token ids.

A policy appends to the ids of a conversation and never renders a message twice. So a format renders single pieces:

    prompt 1 = opening(system, user)
    prompt n = prompt n-1 + sampled + closing(sampled) + (tool_outputs(...) or user_message(...))

Invariants of every format (tests/text/formats/test_properties.py):
- No text produces a special token: `encode` of a TokenizerLike returns none, and only the format inserts them.
- parse accepts any ids. It counts those of thinking, calls and message; the three counts add up to the number of ids up
  to the end of the turn.
- parse(render_turn(thinking, text, calls)) gives the same thinking, text and calls.
- For a malformed call, parse returns the text exactly as the model wrote it, and parse_call says in one line what is
  wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from etude.text.calls import Arguments, CallSchema


class TokenizerLike(Protocol):
    """The tokenizer interface that chat formats need."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. They never include a special token, whatever the text says."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of a list of arbitrary ids. Special tokens appear as their names."""
        ...

    def special(self, name: str) -> int | None:
        """Return the id of a special token such as `<|im_end|>`; None if the vocabulary does not have it."""
        ...


@dataclass(frozen=True, slots=True)
class ParsedCall:
    raw: str
    """The decoded text between the call's markers, exactly as the model wrote it."""
    complete: bool = True
    """False if the call's end marker is missing, so that the call may have been cut off."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A parsed assistant turn. The three counts (thinking, calls, message) add up to the number of tokens sampled up to
    the end of the turn. A start marker counts towards the part that it opens, an end marker towards the part that it
    ends."""

    thinking: str = ""
    text: str = ""
    calls: tuple[ParsedCall, ...] = ()
    ended: bool = False
    thinking_tokens: int = 0
    call_tokens: int = 0
    message_tokens: int = 0


class Exchange(NamedTuple):
    """One turn of a conversation: the ids newly given to the model before the turn, and the ids that it sampled."""

    given: list[int]
    sampled: list[int]


class Format(Protocol):
    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end an assistant turn."""
        ...

    @property
    def answering(self) -> tuple[int, ...]:
        """The ids that start the assistant's turn. The ids of `opening`, `user_message` and, in most formats,
        `tool_outputs` end with them. To append another message before the assistant answers, a caller first removes
        them. They contain a special token, so no text ends with them."""
        ...

    def offering(self, tools: Sequence[Mapping[str, Any]]) -> Format:
        """Return this format with exactly these tools declared, given as functions of the OpenAI chat protocol. A
        format that does not declare tools returns itself."""
        ...

    def count(self, text: str) -> int: ...

    def opening(self, system: str, user: str) -> list[int]:
        """Return the ids of the first prompt: system prompt, tools if the format declares them, the user message, and
        the start of the assistant's turn."""
        ...

    def user_message(self, text: str) -> list[int]: ...

    def tool_outputs(self, outputs: Sequence[str], calls: Sequence[str] = ()) -> list[int]:
        """Return the ids of tool outputs, one per call in call order. `calls` are the raw calls, for formats whose
        outputs repeat the call's id."""
        ...

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Return the ids to append to a turn: the end marker if the turn was cut off, and what the format writes after
        that marker. `ids` are the turn's ids, or any longer list that ends with them."""
        ...

    def render_turn(self, thinking: str, text: str, calls: Sequence[str]) -> list[int]:
        """Return the ids of a whole assistant turn, for policies that write text instead of sampling tokens."""
        ...

    def parse(self, sampled: Sequence[int]) -> ParsedTurn: ...

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        """Return the called tool's name and arguments, or a one-line description of the problem. The arguments are not
        checked against the tool's full schema."""
        ...

    def call_name(self, raw: str) -> str:
        """Return the name of the tool that a call names, even if the call does not parse; empty if none is found."""
        ...

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        """Return the raw text of a call. `number` is the number of earlier calls in the conversation. Raises ValueError
        if the format cannot express the arguments."""
        ...

    def recall(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        """Return the exchanges as this format's template renders them once the user sends another message.

        They are unchanged unless the format was configured to follow a template that rewrites history (for example
        drops earlier thinking). The kept parts of a turn are the ids that were sampled, never text encoded again.
        """
        ...
