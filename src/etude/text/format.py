"""The Format interface: how one family of models writes a conversation as token ids.

A policy appends to the ids of a conversation and never renders a message twice. So a format renders single pieces:

    prompt 1 = opening(system, user)
    prompt n = prompt n-1 + sampled + closing(sampled) + (tool_outputs(...) or user_message(...))

In some formats a turn ends with the token that begins the next message; `following` then leaves it out of the latter.

Invariants of every format (tests/text/formats/test_properties.py):
- No text produces a special token: `encode` of a TokenizerLike returns none, and only the format inserts them.
- parse accepts any ids. It counts those of thinking, calls and message; the three counts add up to the number of ids up
  to the end of the turn.
- parse(render_turn(thinking, text, calls)) gives the same thinking, text and calls.
- For a malformed call, parse returns the text exactly as the model wrote it, and parse_call says in one line what is
  wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from etude.text.calls import Arguments, CallSchema


class TokenizerLike(Protocol):
    def encode(self, text: str) -> list[int]:
        """Return a text's token ids. They never include a special token, whatever the text says."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of any ids. Special tokens appear as their names."""
        ...

    def special(self, name: str) -> int | None:
        """Return the id of a special token such as `<|im_end|>`; None if the vocabulary lacks it."""
        ...


class TextTokenizer(Protocol):
    """What a corpus needs of a tokenizer, Étude's own or a published model's."""

    vocab_size: int
    """Number of ids; all ids are below it."""

    @property
    def identity(self) -> str:
        """Digest of what decides a text's ids."""
        ...

    def documents(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of whole training documents, with the special tokens that begin and end one. No text produces
        another special token. Raises TokenizerError if the vocabulary has no token that ends a document."""
        ...

    def text(self, document: Iterable[int]) -> str:
        """Return the text of a document's ids, without its special tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ParsedCall:
    raw: str
    """The text between the call's markers, exactly as the model wrote it."""
    complete: bool = True
    """Whether the end of the call was reached; if not, the call may have been cut off."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The parts of a sampled turn. The three token counts add up to the tokens sampled up to the end of the turn. A
    start marker counts towards the part that it opens, an end marker towards the part that it ends."""

    thinking: str = ""
    text: str = ""
    calls: tuple[ParsedCall, ...] = ()
    ended: bool = False
    thinking_tokens: int = 0
    call_tokens: int = 0
    message_tokens: int = 0


class TurnPiece(NamedTuple):
    """A piece of a turn that is read while it is sampled."""

    kind: Literal["thinking", "text", "call"]
    text: str
    """More of the thinking or of the text, or the whole raw text of a call."""
    complete: bool = True
    """Of a call: whether its end was reached."""


class TurnReader(Protocol):
    """Reads one turn while it is sampled. However its ids are cut into feeds, the pieces add up to what `Format.parse`
    makes of all of them."""

    def feed(self, ids: Iterable[int]) -> list[TurnPiece]: ...

    def end(self) -> list[TurnPiece]:
        """Return what was held back because later ids could have changed it."""
        ...


class Exchange(NamedTuple):
    """One turn of a conversation: the ids newly given to the model before the turn, and the ids that it sampled."""

    given: list[int]
    sampled: list[int]


class Format(Protocol):
    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an assistant turn."""
        ...

    @property
    def heads(self) -> frozenset[int]:
        """Stop ids that are also the first id of the next message; in most formats there are none."""
        ...

    @property
    def answering(self) -> tuple[int, ...]:
        """Ids that start the assistant's turn. The ids of `opening`, `user_message`, `system_message` and, in most
        formats, `tool_outputs` end with them, so a caller removes them to append another message. They include a
        special token, so no text ends with them."""
        ...

    @property
    def typed(self) -> bool:
        """Whether the arguments of a call are JSON; if not, they are plain text, and all but whole numbers parse as
        strings."""
        ...

    def offering(self, tools: Sequence[Mapping[str, Any]]) -> Format:
        """Return this format with exactly these tools declared, as functions of the OpenAI chat protocol; the format
        itself if it declares no tools."""
        ...

    def count(self, text: str) -> int: ...

    def opening(self, system: str | None, user: str) -> list[int]:
        """Return the ids of the first prompt: system prompt, tools if declared, user message and start of the
        assistant's turn. `system` None: what the family writes where a conversation has no system message, which may be
        a system prompt of its own; an empty text is another thing."""
        ...

    def user_message(self, text: str) -> list[int]: ...

    def system_message(self, text: str) -> list[int] | None:
        """Return the ids of a system message after the opening, and of the start of the assistant's turn; None if the
        family writes system messages only at the beginning."""
        ...

    def tool_outputs(self, outputs: Sequence[str], calls: Sequence[str] = ()) -> list[int]:
        """Return the ids of the tool outputs, given in call order, and, in most formats, of the start of the
        assistant's turn. `calls` are the raw calls, for formats whose outputs repeat the call's id."""
        ...

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Return the ids to append to a turn: the end marker if the turn was cut off, and what the format writes after
        that. `ids` are the turn's, or any longer list that ends with them."""
        ...

    def render_turn(self, thinking: str, text: str, calls: Sequence[str]) -> list[int]:
        """Return the ids of a whole assistant turn, for policies that write text instead of sampling tokens."""
        ...

    def parse(self, sampled: Sequence[int]) -> ParsedTurn: ...

    def reader(self) -> TurnReader:
        """Return a reader of one turn, which gives its parts while it is sampled."""
        ...

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        """Return the tool's name and arguments, which are not checked against its full schema, or a one-line
        description of the problem."""
        ...

    def call_name(self, raw: str) -> str:
        """Return the tool's name, even if the call does not parse; empty if none is found."""
        ...

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        """Return a call's raw text. `number` is the number of earlier calls in the conversation. Raises ValueError if
        the format cannot express the arguments."""
        ...

    def recall(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        """Return the exchanges as this format's template renders them once the user sends another message.

        They are unchanged unless the format was configured to follow a template that rewrites history, for example one
        that drops earlier thinking. The kept parts of a turn are the ids that were sampled, never text encoded again.
        """
        ...


def following(form: Format, before: Sequence[int], message: list[int]) -> list[int]:
    """Return the ids of a message after the ids `before`: without its first id, if a turn ended with that."""
    sampled = len(before) > 0 and before[-1] in form.heads and before[-1] == message[0]
    return message[1:] if sampled else message
