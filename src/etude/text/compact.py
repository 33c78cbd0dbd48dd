"""Étude's compact chat format, on token ids.

    <bos><system>...<end><user>...<end><assistant> [<think>thinking[<think>]] message [<call>name args]... <end>
    <tool>output<end> (one per call, in call order) <assistant> ...

Invariant (exact prefix): the next prompt is the last prompt, plus the ids that were sampled, plus `closing(sampled)`,
plus the ids of the tool outputs or of the user's message. Nothing sampled is ever decoded and encoded again, and no
text can produce a special token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from etude.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ParsedCall:
    raw: str
    """What the model wrote after the call marker, undone by the tokenizer and nothing else."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """The three counts add up to the sampled tokens: a marker counts with what it opens, `<end>` with what it ends."""

    thinking: str = ""
    text: str = ""
    calls: tuple[ParsedCall, ...] = ()
    ended: bool = False
    thinking_tokens: int = 0
    call_tokens: int = 0
    message_tokens: int = 0


@dataclass(slots=True)
class _Part:
    kind: str
    ids: list[int] = field(default_factory=list)
    tokens: int = 0


class CompactFormat:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.stop_ids: tuple[int, ...] = (tokenizer.special.end,)

    def opening(self, system: str, user: str) -> list[int]:
        """The start of a conversation, up to where the assistant begins."""
        special, encode = self.tokenizer.special, self.tokenizer.encode
        return [special.bos, special.system, *encode(system), special.end, *self.user_message(user)]

    def user_message(self, text: str) -> list[int]:
        special = self.tokenizer.special
        return [special.user, *self.tokenizer.encode(text), special.end, special.assistant]

    def tool_outputs(self, outputs: Sequence[str]) -> list[int]:
        """One answer per call, in call order, up to where the assistant begins."""
        special = self.tokenizer.special
        ids: list[int] = []
        for output in outputs:
            ids += [special.tool, *self.tokenizer.encode(output), special.end]
        return [*ids, special.assistant]

    def closing(self, sampled: Sequence[int]) -> list[int]:
        """What must follow the sampled ids before anything else: the end marker, when the turn was cut off."""
        end = self.tokenizer.special.end
        return [] if len(sampled) and sampled[-1] == end else [end]

    def render_turn(self, thinking: str, text: str, calls: Sequence[str]) -> list[int]:
        """The ids of a whole turn, for policies that write instead of sampling."""
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
        """Any ids parse: a second think marker closes the first; a special token that has no place here stays in the
        text as a visible marker. Ids after an end marker are not looked at."""
        special, decode = self.tokenizer.special, self.tokenizer.decode
        parts = [_Part("message")]
        ended = False
        for token in sampled:
            if token == special.call:
                parts.append(_Part("call"))
            elif token == special.think:
                parts.append(_Part("message" if parts[-1].kind == "thinking" else "thinking"))
            elif token != special.end:
                parts[-1].ids.append(int(token))
            parts[-1].tokens += 1
            if token == special.end:
                ended = True
                break
        tokens = {kind: sum(p.tokens for p in parts if p.kind == kind) for kind in ("thinking", "call", "message")}
        return ParsedTurn(
            thinking="".join(decode(part.ids) for part in parts if part.kind == "thinking"),
            text="".join(decode(part.ids) for part in parts if part.kind == "message"),
            calls=tuple(ParsedCall(decode(part.ids)) for part in parts if part.kind == "call"),
            ended=ended,
            thinking_tokens=tokens["thinking"],
            call_tokens=tokens["call"],
            message_tokens=tokens["message"],
        )
