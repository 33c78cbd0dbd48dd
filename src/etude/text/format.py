"""The Format noun: how one family of models writes a conversation, on token ids.

A policy extends ids and never renders them twice, so a format is asked for pieces, not for whole conversations:

    prompt 1 = opening(system, user)
    prompt n = prompt n-1 + sampled + closing(sampled) + (tool_outputs(...) or user_message(...))

Invariants of every format (tests/text/formats/test_properties.py):
- No text produces a special token: `encode` of a TokenizerLike gives none, and only the format places them.
- parse takes any ids; its three counts add up to the ids that it looked at.
- parse(render_turn(thinking, text, calls)) gives the same thinking, text and calls.
- A call that does not parse keeps what the model wrote, and parse_call says in one line what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from etude.text.calls import Arguments, CallSchema


class TokenizerLike(Protocol):
    """What a format needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Never gives a special token, whatever the text says."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Takes any ids; special tokens show as their names."""
        ...

    def special(self, name: str) -> int | None:
        """The id of a special token, `<|im_end|>` for example; None where the vocabulary has no such token."""
        ...


@dataclass(frozen=True, slots=True)
class ParsedCall:
    raw: str
    """What the model wrote inside the call's markers, undone by the tokenizer and nothing else."""
    complete: bool = True
    """False when its end is missing: it may be half of what was meant."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The three counts add up to the sampled tokens: a marker counts with what it opens, an end with what it ends."""

    thinking: str = ""
    text: str = ""
    calls: tuple[ParsedCall, ...] = ()
    ended: bool = False
    thinking_tokens: int = 0
    call_tokens: int = 0
    message_tokens: int = 0


class Exchange(NamedTuple):
    """What was said to the model, up to where it begins, and what it sampled then."""

    given: list[int]
    sampled: list[int]


class Format(Protocol):
    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn."""
        ...

    @property
    def answering(self) -> tuple[int, ...]:
        """With what `opening`, `user_message` and most `tool_outputs` end: where the assistant begins. Where somebody
        else speaks next, these ids go. They hold a special token, so no text ends like them."""
        ...

    def offering(self, tools: Sequence[Mapping[str, Any]]) -> Format:
        """The same format where these tools, functions of the OpenAI chat protocol, and no others are there to be
        called. A format that declares none is itself."""
        ...

    def count(self, text: str) -> int: ...

    def opening(self, system: str, user: str) -> list[int]:
        """The start of a conversation: system prompt, tools where the format declares them, the first user message."""
        ...

    def user_message(self, text: str) -> list[int]: ...

    def tool_outputs(self, outputs: Sequence[str], calls: Sequence[str] = ()) -> list[int]:
        """One answer per call, in call order; `calls` are the raw calls, for formats whose answers repeat an id."""
        ...

    def closing(self, ids: Sequence[int]) -> list[int]:
        """What must follow a turn before anything else: its end marker when it was cut off, and what the format puts
        behind that. `ids` end with the turn."""
        ...

    def render_turn(self, thinking: str, text: str, calls: Sequence[str]) -> list[int]:
        """The ids of a whole turn, for policies that write instead of sampling."""
        ...

    def parse(self, sampled: Sequence[int]) -> ParsedTurn: ...

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        """The tool's name and arguments, or the problem in one line. Whether the arguments fit the tool is for the
        tool's schema to say."""
        ...

    def call_name(self, raw: str) -> str:
        """The tool that a call names, also one that does not parse; empty where none is found."""
        ...

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        """The raw text of a call. `number` counts the conversation's calls before it; ValueError when the format
        cannot express the arguments."""
        ...

    def recall(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        """The exchanges as this format's template shows them once a user speaks again. Equal to what is given, unless
        the format was told to follow a template that rewrites history; what it keeps of a turn are sampled ids."""
        ...
