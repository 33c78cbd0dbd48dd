"""Étude's compact chat format, on token ids.

    <bos><system>...<end><user>...<end><assistant> [<think>thinking[<think>]] message [<call>name args]... <end>
    <tool>output<end> (one per call, in call order) <assistant> ...

Invariant (exact prefix): the next prompt is the last prompt, plus the sampled ids, plus `closing(sampled)`, plus the
ids of the tool outputs or of the user's message. Sampled ids are never decoded and encoded again, and no text can
produce a special token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.text.calls import CallSchema, call_name, format_call, parse_call
from etude.text.format import Exchange, ParsedCall, ParsedTurn, TurnReader
from etude.text.formats.grammar import Grammar, Part, PartKind
from etude.text.formats.streaming import PieceReader
from etude.text.tokenizer import Special, Tokenizer


class _Scanner:
    """Sorts the ids of a turn into its parts. A second think marker closes the first, and a call ends where the next
    part begins or the turn ends."""

    def __init__(self, special: Special) -> None:
        self.parts = [Part("message")]
        self.ended = False
        self._special = special

    def take(self, token: int) -> None:
        here = self.parts[-1]
        if token in (self._special.call, self._special.think):
            closes = here.kind == "thinking" and token == self._special.think
            kind: PartKind = "call" if token == self._special.call else "message" if closes else "thinking"
            here.closed = here.kind == "call"
            self.parts.append(Part(kind, tokens=1))
            return
        here.tokens += 1
        if token == self._special.end:
            self.ended = here.closed = True
        else:
            here.ids.append(token)


class CompactFormat:
    parse_call = staticmethod(parse_call)
    call_name = staticmethod(call_name)
    typed = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.stop_ids: tuple[int, ...] = (tokenizer.special.end,)
        self.heads: frozenset[int] = frozenset()
        self.answering: tuple[int, ...] = (tokenizer.special.assistant,)

    def offering(self, tools: Sequence[Mapping[str, Any]]) -> CompactFormat:
        """Return this format itself: it declares no tools, because the system prompt names them."""
        return self

    def count(self, text: str) -> int:
        return self.tokenizer.count(text)

    def opening(self, system: str | None, user: str) -> list[int]:
        special, encode = self.tokenizer.special, self.tokenizer.encode
        told = [] if system is None else [special.system, *encode(system), special.end]
        return [special.bos, *told, *self.user_message(user)]

    def user_message(self, text: str) -> list[int]:
        special = self.tokenizer.special
        return [special.user, *self.tokenizer.encode(text), special.end, special.assistant]

    def system_message(self, text: str) -> None:
        """Return None: a context has one system message, at its beginning."""

    def tool_outputs(self, outputs: Sequence[str], calls: Sequence[str] = ()) -> list[int]:
        """Return the ids of the outputs and of the start of the assistant's turn. There must be one output per call, in
        call order, because only the order tells which call an output answers."""
        special = self.tokenizer.special
        ids: list[int] = []
        for output in outputs:
            ids += [special.tool, *self.tokenizer.encode(output), special.end]
        return [*ids, special.assistant]

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Return the end marker if the turn was cut off, otherwise nothing."""
        end = self.tokenizer.special.end
        return [] if len(ids) and ids[-1] == end else [end]

    def render_turn(self, thinking: str, text: str, calls: Sequence[str]) -> list[int]:
        special, encode = self.tokenizer.special, self.tokenizer.encode
        ids: list[int] = []
        if thinking:
            ids += [special.think, *encode(thinking)]
            if text:
                ids.append(special.think)
        ids += encode(text)
        for call in calls:
            ids += [special.call, *encode(call)]
        return [*ids, special.end]

    def parse(self, sampled: Sequence[int]) -> ParsedTurn:
        """Parse sampled ids, whatever they are. A second think marker closes the first, and a misplaced special token
        stays in the text as a readable marker; ids after an end marker are ignored. Calls have no end marker of their
        own, so in a turn that was cut off the last call counts as incomplete."""
        scanner = _Scanner(self.tokenizer.special)
        for token in map(int, sampled):
            scanner.take(token)
            if scanner.ended:
                break
        parts, decode = scanner.parts, self.tokenizer.decode
        tokens = {kind: sum(p.tokens for p in parts if p.kind == kind) for kind in ("thinking", "call", "message")}
        return ParsedTurn(
            thinking="".join(decode(part.ids) for part in parts if part.kind == "thinking"),
            text="".join(decode(part.ids) for part in parts if part.kind == "message"),
            calls=tuple(ParsedCall(decode(part.ids), part.closed) for part in parts if part.kind == "call"),
            ended=scanner.ended,
            thinking_tokens=tokens["thinking"],
            call_tokens=tokens["call"],
            message_tokens=tokens["message"],
        )

    def reader(self) -> TurnReader:
        special = self.tokenizer.special
        return PieceReader(
            Grammar((special.call, special.end), (special.end,)), _Scanner(special), self.tokenizer.decode
        )

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        return format_call(name, arguments, schema)

    def recall(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        return list(exchanges)
