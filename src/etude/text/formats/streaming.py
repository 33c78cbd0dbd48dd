"""Reads a turn while it is sampled: token ids in, pieces of thinking, text and calls out.

Invariant: however the ids are cut into feeds, the pieces add up to what `Format.parse` makes of all ids. A reader holds
back what later ids could still change: half a character, the beginning of a mark, and newlines that the template writes
before the next part.
"""

from __future__ import annotations

import re
from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from typing import Literal, Protocol, TypeAlias

from etude.text.format import TurnPiece
from etude.text.formats.grammar import Decode, Grammar, Part, call_in

_HALF = "\ufffd"
"""How a decoder shows bytes that are no character, or not yet."""
_BEGUN_OBJECT = re.compile(r'^\{(?:\s*(?:"(?:n(?:a(?:m(?:e(?:"\s*)?)?)?)?)?)?)?\Z', re.MULTILINE)
"""The end of a text where a JSON object with a "name" may have begun."""


Kind: TypeAlias = Literal["thinking", "text", "call"]


class TokenScanner(Protocol):
    """Sorts ids into the parts of a turn. Only the last part grows."""

    parts: list[Part]
    ended: bool

    def take(self, token: int) -> None: ...


class TextDecoder:
    """Decodes the ids of one text as they come."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        """The last ids. The first ones give the decoder its context, since spaces may depend on the token before."""
        self._context = 0
        """How many of the ids are context, with which the text was whole."""
        self._said = 0
        """How many characters of these ids' text were returned."""

    def feed(self, ids: Iterable[int], *, last: bool = False) -> str:
        """Return the text of further ids, up to the last whole character, or all of it if they are the `last`."""
        self._ids += ids
        text = self._decode(self._ids)
        whole = not text.endswith(_HALF)
        end = len(text) if whole or last else len(text) - 1
        new, self._said = text[self._said : end], max(self._said, end)
        if whole and len(self._ids) > self._context:
            self._ids = self._ids[self._context :]
            self._context = len(self._ids)
            self._said = len(self._decode(self._ids))
        return new


class PieceReader:
    """Reads one turn. Implements `TurnReader`."""

    def __init__(self, grammar: Grammar, scanner: TokenScanner, decode: Decode) -> None:
        self._grammar, self._scanner, self._decode = grammar, scanner, decode
        self._at = 0
        """Index of the part that is being read."""
        self._before = ""
        """Kind of what came before the text that is being read."""
        self._called = False
        """Whether there was a call."""
        self._over = False
        self._begin_part()

    def feed(self, ids: Iterable[int]) -> list[TurnPiece]:
        for token in map(int, ids):
            if not self._scanner.ended:
                self._scanner.take(token)
        return self._read(last=self._scanner.ended)

    def end(self) -> list[TurnPiece]:
        return self._read(last=True)

    def _begin_part(self) -> None:
        self._seen = 0
        """Number of the part's ids that were read."""
        self._decoder = TextDecoder(self._decode)
        self._text = ""
        self._given = 0
        """Number of characters of `_text` that were returned, or that are no text of the turn."""
        self._started = False
        """Whether the newlines were left out that the template writes before such a part's text."""

    def _read(self, *, last: bool) -> list[TurnPiece]:
        pieces: list[TurnPiece] = []
        parts = self._scanner.parts
        while not self._over:
            part = parts[self._at]
            after = parts[self._at + 1].kind if self._at + 1 < len(parts) else ""
            finished = last or bool(after)
            self._text += self._decoder.feed(part.ids[self._seen :], last=finished)
            self._seen = len(part.ids)
            pieces += self._of_part(part, after, finished)
            if not after:
                self._over = last
                break
            self._pass(part.kind)
            self._at += 1
            self._begin_part()
        return pieces

    def _of_part(self, part: Part, after: str, finished: bool) -> Iterator[TurnPiece]:
        grammar, end = self._grammar, len(self._text)
        if part.kind == "call" and finished:
            yield TurnPiece("call", self._text, part.closed)
        if part.kind == "thinking":
            around = grammar.around_thinking
            yield from self._say("thinking", end, around, [around if part.closed or not finished else ""], finished)
        if part.kind == "message":
            start, stop = grammar.call
            if isinstance(start, str) and isinstance(stop, str):
                end = yield from self._calls_in_text(start, stop, finished)
            yield from self._message(end, after, finished)

    def _calls_in_text(self, start: str, stop: str, finished: bool) -> Generator[TurnPiece, None, int]:
        """Return the calls of a message in which they are marked by texts, and the message before each. The value is
        where the message ends for now: where a call begins or may begin that has no end yet."""
        while (found := call_in(self._text, self._given, start, stop)) is not None:
            yield from self._message(found.start, "call", finished=True)
            if not (found.closed or finished):
                return found.start
            yield TurnPiece("call", found.raw, found.closed)
            self._pass("call")
            self._given = found.stop
        return len(self._text) if finished else self._begun(start)

    def _begun(self, start: str) -> int:
        """Return where a call's mark may have begun, at the end of the text."""
        if start:
            return len(self._text) - _overlap(self._text[self._given :], start)
        found = _BEGUN_OBJECT.search(self._text, self._given)
        return found.start() if found else len(self._text)

    def _message(self, end: int, after: str, finished: bool) -> Iterator[TurnPiece]:
        grammar = self._grammar
        start = grammar.after_thinking if self._before == "thinking" else ""
        behind = {
            "call": grammar.between_calls if self._called else grammar.before_first_call,
            "thinking": grammar.before_thinking,
        }
        ends = [behind.get(after, "")] if finished else list(behind.values())
        yield from self._say("text", end, start, ends, finished)

    def _say(self, kind: Kind, end: int, start: str, ends: Sequence[str], finished: bool) -> Iterator[TurnPiece]:
        """Return the new text before `end`, without `start` at its beginning and without one of `ends` at its end.
        Unless it is finished, keep back what may become one of them."""
        text = self._text[self._given : end]
        if not self._started:
            if not finished and len(text) < len(start) and start.startswith(text):
                return
            self._given += len(start) if text.startswith(start) else 0
            text, self._started = text.removeprefix(start), True
        kept = max(len(mark) if text.endswith(mark) else 0 if finished else _overlap(text, mark) for mark in ends)
        if new := text[: len(text) - kept]:
            self._given += len(new)
            yield TurnPiece(kind, new)

    def _pass(self, kind: str) -> None:
        self._before = kind
        self._called = self._called or kind == "call"


class PlainReader:
    """Reads an answer that is text alone, up to the first id that ends it. Implements `TurnReader`."""

    def __init__(self, stop: Container[int], decode: Decode) -> None:
        self._stop, self._decoder = stop, TextDecoder(decode)
        self._over = False

    def feed(self, ids: Iterable[int]) -> list[TurnPiece]:
        if self._over:
            return []
        said = list(ids)
        end = next((place for place, token in enumerate(said) if token in self._stop), None)
        self._over = end is not None
        return _text_piece(self._decoder.feed(said[:end], last=self._over))

    def end(self) -> list[TurnPiece]:
        return [] if self._over else _text_piece(self._decoder.feed((), last=True))


def _text_piece(text: str) -> list[TurnPiece]:
    return [TurnPiece("text", text)] if text else []


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest beginning of the mark with which the text ends."""
    return next(length for length in range(min(len(mark), len(text)), -1, -1) if text.endswith(mark[:length]))
