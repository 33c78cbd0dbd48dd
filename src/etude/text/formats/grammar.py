"""Writes and parses assistant turns, for chat formats that mark the parts of a turn by special tokens.

    [<think> thinking </think>] text [<section> <call> raw </call> <call> raw </call> </section>] <stop>

Where a vocabulary has no tokens for the marks of a call, the marks are plain text.

Invariants: `read` accepts any ids and counts each once, up to the end of the turn; read(write(turn)) equals the turn,
down to the last newline, unless text or call spell a mark that is plain text. `write` adds the newlines that the
template has around the parts, and `read` removes exactly these. Neither trims the text itself, although some templates
do.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from etude.text.format import ParsedCall, ParsedTurn
from etude.text.formats.marks import Piece

_OBJECT = re.compile(r'^\{\s*"name"\s*:', re.MULTILINE)

Pair: TypeAlias = tuple[int, int]
Decode: TypeAlias = Callable[[Iterable[int]], str]
PartKind: TypeAlias = Literal["message", "thinking", "call", "frame"]


@dataclass(frozen=True, slots=True)
class Grammar:
    call: Pair | tuple[str, str]
    """What stands before and after a call: two special tokens, or two texts in ASCII. If the texts are empty, a call is
    a line that begins with a JSON object with a "name"."""
    stop: tuple[int, ...]
    """Tokens that end a turn. `write` uses the first, unless the format has `heads`."""
    heads: Pair | None = None
    """Stop tokens that also begin the next message: the one after a turn without calls, and the one after calls."""
    section: Pair | None = None
    """Tokens around all calls of a turn, if the format has them."""
    separator: tuple[str, int] | None = None
    """Name and id of the token that separates the parts of a call, such as name and arguments, if the format has one.
    In a call's raw text it appears as its name."""
    inside: Callable[[str], list[Piece]] | None = None
    """Splits a call's raw text into pieces, for formats with several tokens inside a call."""
    think: Pair | None = None
    empty_think: bool = False
    """Whether thinking markers are written even without thinking."""
    before_thinking: str = ""
    around_thinking: str = ""
    """Text between the thinking and each of its markers."""
    after_thinking: str = ""
    before_first_call: str = ""
    """Text between a non-empty message and the first call."""
    between_calls: str = ""


@dataclass(slots=True)
class Part:
    kind: PartKind
    ids: list[int] = field(default_factory=list)
    text: str = ""
    """What the ids say, once they are decoded."""
    tokens: int = 0
    closed: bool = False


def write(grammar: Grammar, thinking: str, text: str, calls: Sequence[str]) -> list[Piece]:
    """Return the pieces of a turn. Raises ValueError for thinking if the vocabulary has no tokens that mark it."""
    pieces: list[Piece] = []
    if thinking and grammar.think is None:
        raise ValueError("this tokenizer has no tokens that mark thinking, so a turn cannot hold any")
    if grammar.think is not None and (thinking or grammar.empty_think):
        around = grammar.around_thinking
        pieces += [
            grammar.before_thinking,
            grammar.think[0],
            around + thinking + around,
            grammar.think[1],
            grammar.after_thinking,
        ]
    pieces.append(text)
    if calls:
        pieces.append(grammar.before_first_call if text else "")
        pieces += [grammar.section[0]] if grammar.section else []
        for place, raw in enumerate(calls):
            pieces += [grammar.between_calls] if place else []
            pieces += [grammar.call[0], *_inside(grammar, raw), grammar.call[1]]
        pieces += [grammar.section[1]] if grammar.section else []
    return [*pieces, grammar.heads[bool(calls)] if grammar.heads else grammar.stop[0]]


def read(grammar: Grammar, sampled: Iterable[int], decode: Decode) -> ParsedTurn:
    """Parse sampled ids, whatever they are. A misplaced special token stays in the text as its name. The start of a
    call is recognised anywhere. Inside a call, the only other tokens recognised are the ends of call, section and turn.
    Ids after the end of the turn are ignored."""
    parts, ended = _parts(grammar, sampled)
    for part in parts:
        part.text = decode(part.ids)
    start, end = grammar.call
    if isinstance(start, str) and isinstance(end, str):
        parts = [piece for part in parts for piece in _split(part, start, end, decode)]
    tokens = {kind: sum(part.tokens for part in parts if part.kind == kind) for kind in ("thinking", "message")}
    return ParsedTurn(
        thinking="".join(_thinking(grammar, part) for part in parts if part.kind == "thinking"),
        text="".join(_message(grammar, parts, place) for place in range(len(parts))),
        calls=tuple(ParsedCall(part.text, part.closed) for part in parts if part.kind == "call"),
        ended=ended,
        thinking_tokens=tokens["thinking"],
        call_tokens=sum(part.tokens for part in parts if part.kind in ("call", "frame")),
        message_tokens=tokens["message"],
    )


def without_thinking(grammar: Grammar, sampled: Sequence[int], decode: Decode) -> list[int]:
    """Drop a turn's thinking and the newlines after it.

    The markers are kept in a format that writes them even without thinking. Thinking without an end marker is kept too,
    because it cannot be separated from the rest.
    """
    if grammar.think is None:
        return list(sampled)
    kept: list[int] = []
    opened: int | None = None
    after = False
    for token in sampled:
        if after and not decode([token]).strip("\n"):
            continue
        after = False
        if token == grammar.think[0] and opened is None:
            opened = len(kept)
        kept.append(token)
        if token == grammar.think[1] and opened is not None:
            kept[opened:] = grammar.think if grammar.empty_think else ()
            opened, after = None, bool(grammar.after_thinking)
    return kept


class Scanner:
    """Sorts the ids of a turn into its parts, one id after another. Ids after the end of the turn must not be given."""

    def __init__(self, grammar: Grammar) -> None:
        self.parts = [Part("message")]
        self.ended = False
        self._stop = grammar.stop
        self._call, self._section, self._think = grammar.call, grammar.section, grammar.think

    def take(self, token: int) -> None:
        begin_call, end_call = self._call
        begin_section, end_section = self._section or (None, None)
        begin_think, end_think = self._think or (None, None)
        parts, here = self.parts, self.parts[-1]
        inside = here.kind == "call"
        if token in self._stop:
            here.tokens += 1
            self.ended = True
        elif token == begin_call:
            parts.append(Part("call", tokens=1))
        elif (inside and token == end_call) or (here.kind == "thinking" and token == end_think):
            here.tokens += 1
            here.closed = True
            parts.append(Part("message"))
        elif token == end_section or (token == begin_section and not inside):
            parts += [Part("frame", tokens=1), Part("message")]
        elif token == begin_think and here.kind == "message":
            parts.append(Part("thinking", tokens=1))
        else:
            here.ids.append(token)
            here.tokens += 1


def _parts(grammar: Grammar, sampled: Iterable[int]) -> tuple[list[Part], bool]:
    scanner = Scanner(grammar)
    for token in map(int, sampled):
        scanner.take(token)
        if scanner.ended:
            break
    return scanner.parts, scanner.ended


def _split(part: Part, start: str, end: str, decode: Decode) -> list[Part]:
    """Split a message at its calls, whose marks are text. A token that reaches over a call's end counts for the part
    that it begins in."""
    pieces, text, counted = [], part.text, 0
    at = 0
    while part.kind == "message":
        found = call_in(text, at, start, end)
        if found is None:
            break
        first, last = (_tokens_of(part.ids, text, place, decode) for place in (found.start, found.stop))
        pieces.append(Part("message", text=text[at : found.start], tokens=first - counted))
        pieces.append(Part("call", text=found.raw, tokens=last - first, closed=found.closed))
        at, counted = found.stop, last
    return [*pieces, Part(part.kind, text=text[at:], tokens=part.tokens - counted, closed=part.closed)]


class FoundCall(NamedTuple):
    """A call in a text: its place, marks included, and its raw text."""

    start: int
    stop: int
    raw: str
    closed: bool


def call_in(text: str, at: int, start: str, end: str) -> FoundCall | None:
    """Find the next call in a text whose calls have these marks, or none (see `Grammar.call`)."""
    return _between_marks(text, at, start, end) if start else _bare_object(text, at)


def _between_marks(text: str, at: int, start: str, end: str) -> FoundCall | None:
    opened = text.find(start, at)
    if opened < 0:
        return None
    inside = opened + len(start)
    closed = text.find(end, inside)
    if closed < 0:
        return FoundCall(opened, len(text), text[inside:], closed=False)
    return FoundCall(opened, closed + len(end), text[inside:closed], closed=True)


def _bare_object(text: str, at: int) -> FoundCall | None:
    """Find a JSON object that begins a line. One that is malformed takes all of the text behind it."""
    begun = _OBJECT.search(text, at)
    if begun is None:
        return None
    try:
        _, stop = json.JSONDecoder().raw_decode(text, begun.start())
    except (ValueError, RecursionError):
        return FoundCall(begun.start(), len(text), text[begun.start() :], closed=False)
    return FoundCall(begun.start(), stop, text[begun.start() : stop], closed=True)


def _tokens_of(ids: Sequence[int], text: str, place: int, decode: Decode) -> int:
    """Return the number of ids that the text up to `place`, before or behind a mark, is made of."""
    return bisect.bisect_left(range(len(ids)), True, key=lambda count: decode(ids[:count])[:place] == text[:place])


def _thinking(grammar: Grammar, part: Part) -> str:
    text = part.text.removeprefix(grammar.around_thinking)
    return text.removesuffix(grammar.around_thinking) if part.closed else text


def _message(grammar: Grammar, parts: Sequence[Part], place: int) -> str:
    """Return the text of a message part, without the newlines that the template writes around thinking and before a
    call; "" for another part."""
    if parts[place].kind != "message":
        return ""
    text = parts[place].text
    if place and parts[place - 1].kind == "thinking":
        text = text.removeprefix(grammar.after_thinking)
    after = parts[place + 1].kind if place + 1 < len(parts) else None
    if after == "thinking":
        text = text.removesuffix(grammar.before_thinking)
    if after == "call":
        earlier = any(part.kind == "call" for part in parts[:place])
        text = text.removesuffix(grammar.between_calls if earlier else grammar.before_first_call)
    return text


def _inside(grammar: Grammar, raw: str) -> list[Piece]:
    if grammar.inside is not None:
        return grammar.inside(raw)
    if grammar.separator is None:
        return [raw]
    name, token = grammar.separator
    head, found, rest = raw.partition(name)
    return [head, token, rest] if found else [raw]
