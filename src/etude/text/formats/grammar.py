"""Writes and parses assistant turns, for chat formats that mark the parts of a turn by special tokens.

    [<think> thinking </think>] text [<section> <call> raw </call> <call> raw </call> </section>] <stop>

Invariants: `read` accepts any ids and counts each once, up to the end of the turn; read(write(turn)) equals the turn,
down to the last newline. `write` adds the newlines that the template has around the parts, and `read` removes exactly
these. Neither trims the text itself, although some templates do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from etude.text.format import ParsedCall, ParsedTurn
from etude.text.formats.marks import Piece

Pair: TypeAlias = tuple[int, int]
Decode: TypeAlias = Callable[[Iterable[int]], str]


@dataclass(frozen=True, slots=True)
class Grammar:
    stop: tuple[int, ...]
    """Tokens that end a turn. `write` uses the first."""
    call: Pair
    section: Pair | None = None
    """Tokens around all calls of a turn, if the format has them."""
    separator: tuple[str, int] | None = None
    """Name and id of the token that separates the parts of a call, such as name and arguments, if the format has one.
    In a call's raw text it appears as its name."""
    think: Pair | None = None
    empty_think: bool = False
    """Whether thinking markers are written even without thinking."""
    around_thinking: str = ""
    """Text between the thinking and each of its markers."""
    after_thinking: str = ""
    before_first_call: str = ""
    """Text between a non-empty message and the first call."""
    between_calls: str = ""


@dataclass(slots=True)
class _Part:
    kind: Literal["message", "thinking", "call", "frame"]
    ids: list[int] = field(default_factory=list)
    tokens: int = 0
    closed: bool = False


def write(grammar: Grammar, thinking: str, text: str, calls: Sequence[str]) -> list[Piece]:
    """Return the pieces of a turn. Raises ValueError for thinking if the vocabulary has no tokens that mark it."""
    pieces: list[Piece] = []
    if thinking and grammar.think is None:
        raise ValueError("this tokenizer has no tokens that mark thinking, so a turn cannot hold any")
    if grammar.think is not None and (thinking or grammar.empty_think):
        around = grammar.around_thinking
        pieces += [grammar.think[0], around + thinking + around, grammar.think[1], grammar.after_thinking]
    pieces.append(text)
    if calls:
        pieces.append(grammar.before_first_call if text else "")
        pieces += [grammar.section[0]] if grammar.section else []
        for place, raw in enumerate(calls):
            pieces += [grammar.between_calls] if place else []
            pieces += [grammar.call[0], *_inside(grammar, raw), grammar.call[1]]
        pieces += [grammar.section[1]] if grammar.section else []
    return [*pieces, grammar.stop[0]]


def read(grammar: Grammar, sampled: Iterable[int], decode: Decode) -> ParsedTurn:
    """Parse sampled ids, whatever they are. A misplaced special token stays in the text as its name. The start of a
    call is recognised anywhere. Inside a call, the only other tokens recognised are the ends of call, section and turn.
    Ids after the end of the turn are ignored."""
    parts, ended = _parts(grammar, sampled)
    tokens = {kind: sum(part.tokens for part in parts if part.kind == kind) for kind in ("thinking", "message")}
    return ParsedTurn(
        thinking="".join(_thinking(grammar, part, decode) for part in parts if part.kind == "thinking"),
        text="".join(_message(grammar, parts, place, decode) for place in range(len(parts))),
        calls=tuple(ParsedCall(decode(part.ids), part.closed) for part in parts if part.kind == "call"),
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


def _parts(grammar: Grammar, sampled: Iterable[int]) -> tuple[list[_Part], bool]:
    parts = [_Part("message")]
    begin_call, end_call = grammar.call
    begin_section, end_section = grammar.section or (None, None)
    begin_think, end_think = grammar.think or (None, None)
    for token in map(int, sampled):
        here = parts[-1]
        inside = here.kind == "call"
        if token in grammar.stop:
            here.tokens += 1
            return parts, True
        if token == begin_call:
            parts.append(_Part("call", tokens=1))
        elif (inside and token == end_call) or (here.kind == "thinking" and token == end_think):
            here.tokens += 1
            here.closed = True
            parts.append(_Part("message"))
        elif token == end_section or (token == begin_section and not inside):
            parts += [_Part("frame", tokens=1), _Part("message")]
        elif token == begin_think and here.kind == "message":
            parts.append(_Part("thinking", tokens=1))
        else:
            here.ids.append(token)
            here.tokens += 1
    return parts, False


def _thinking(grammar: Grammar, part: _Part, decode: Decode) -> str:
    text = decode(part.ids).removeprefix(grammar.around_thinking)
    return text.removesuffix(grammar.around_thinking) if part.closed else text


def _message(grammar: Grammar, parts: Sequence[_Part], place: int, decode: Decode) -> str:
    """Return the text of a message part, without the newlines that the template writes after thinking and before a
    call; "" for another part."""
    if parts[place].kind != "message":
        return ""
    text = decode(parts[place].ids)
    if place and parts[place - 1].kind == "thinking":
        text = text.removeprefix(grammar.after_thinking)
    if place + 1 < len(parts) and parts[place + 1].kind == "call":
        earlier = any(part.kind == "call" for part in parts[:place])
        text = text.removesuffix(grammar.between_calls if earlier else grammar.before_first_call)
    return text


def _inside(grammar: Grammar, raw: str) -> list[Piece]:
    if grammar.separator is None:
        return [raw]
    name, token = grammar.separator
    head, found, rest = raw.partition(name)
    return [head, token, rest] if found else [raw]
