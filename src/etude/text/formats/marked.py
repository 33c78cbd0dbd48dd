"""The base class of chat formats that mark messages and calls by special tokens.

A subclass defines the special tokens, the grammar of a turn, how each role's message begins, and the text of a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

from etude.text.calls import Arguments, CallSchema
from etude.text.format import Exchange, ParsedTurn, TokenizerLike, TurnReader
from etude.text.formats.grammar import Grammar, Scanner, read, without_thinking, write
from etude.text.formats.marks import Marks, Piece
from etude.text.formats.streaming import PieceReader

THINK, END_THINK = "<think>", "</think>"


class MarkedFormat(ABC):
    """Base class of the formats. `tools` are functions of the OpenAI chat protocol; a format that can declare tools
    does so in `opening`."""

    NAMES: ClassVar[tuple[str, ...]]
    """Special tokens that the format requires."""
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    typed: bool = True

    def __init__(self, tokenizer: TokenizerLike, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.tokenizer = tokenizer
        self.tools = list(tools)
        self.marks = Marks(tokenizer, self.NAMES, self.OPTIONAL)
        self.grammar = self._grammar()
        self.stop_ids = self.grammar.stop
        self.heads = frozenset(self.grammar.heads or ())
        self.answering = tuple(self.marks.ids(self._assistant()))
        self._behind_end = self.marks.ids(self._after_turn())

    @abstractmethod
    def _grammar(self) -> Grammar: ...

    @abstractmethod
    def _assistant(self) -> list[Piece]:
        """Return the pieces that start an assistant turn."""

    def _after_turn(self) -> list[Piece]:
        """Return the pieces after the end marker of an assistant turn."""
        return []

    @abstractmethod
    def _system(self, system: str) -> list[Piece]:
        """Return the pieces of the system message, with the tools if there are any."""

    @abstractmethod
    def _without_system(self) -> list[Piece]:
        """Return the pieces that begin a conversation without a system message, with the tools if there are any."""

    @abstractmethod
    def _user(self, text: str) -> list[Piece]: ...

    def _later_system(self, text: str) -> list[Piece] | None:
        """Return the pieces of a system message after the opening; None if the family has none there."""
        return None

    @abstractmethod
    def _tool(self, outputs: Sequence[str], calls: Sequence[str]) -> list[Piece]:
        """Return the pieces of all tool outputs, and of the assistant's start if the format writes one after them."""

    @abstractmethod
    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str: ...

    @abstractmethod
    def call_name(self, raw: str) -> str: ...

    @abstractmethod
    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str: ...

    def offering(self, tools: Sequence[Mapping[str, Any]]) -> Self:
        other = copy(self)
        other.tools = list(tools)
        return other

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text))

    def opening(self, system: str | None, user: str) -> list[int]:
        return self.marks.ids([*self._begun(system), *self._user(user), *self._assistant()])

    def _begun(self, system: str | None) -> list[Piece]:
        return self._without_system() if system is None else self._system(system)

    def user_message(self, text: str) -> list[int]:
        return self.marks.ids([*self._user(text), *self._assistant()])

    def system_message(self, text: str) -> list[int] | None:
        pieces = self._later_system(text)
        return None if pieces is None else self.marks.ids([*pieces, *self._assistant()])

    def tool_outputs(self, outputs: Sequence[str], calls: Sequence[str] = ()) -> list[int]:
        return self.marks.ids(self._tool(outputs, calls))

    def closing(self, ids: Sequence[int]) -> list[int]:
        ended = len(ids) > 0 and ids[-1] in self.stop_ids
        return self._behind_end if ended else [self.stop_ids[0], *self._behind_end]

    def render_turn(self, thinking: str, text: str, calls: Sequence[str]) -> list[int]:
        return self.marks.ids(write(self.grammar, thinking, text, calls))

    def parse(self, sampled: Sequence[int]) -> ParsedTurn:
        return read(self.grammar, sampled, self.tokenizer.decode)

    def reader(self) -> TurnReader:
        return PieceReader(self.grammar, Scanner(self.grammar), self.tokenizer.decode)

    def recall(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        return list(exchanges)

    def _forget_thinking(self, exchange: Exchange) -> Exchange:
        kept = without_thinking(self.grammar, exchange.sampled, self.tokenizer.decode)
        return Exchange(exchange.given, kept)
