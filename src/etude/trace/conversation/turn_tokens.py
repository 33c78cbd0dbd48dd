"""Converts turns to token ids and back, in any prompt format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from etude.text.calls import CallSchema
from etude.text.format import Format
from etude.trace.conversation.messages import Message, ToolCall, Turn

CUT_OFF = "cut off"
"""Value of `ToolCall.problem` for a call that the token limit cut off. Such a call is not run."""

NOT_CLOSED = "it has no end"
"""Value of `ToolCall.problem` for a call whose end mark is missing for another reason than the token limit."""


def calls_in(messages: Sequence[Message]) -> int:
    return sum(len(message.turn.calls) for message in messages if message.turn)


def written_turn(form: Format, turn: Turn, schemas: Mapping[str, CallSchema], number: int) -> list[int]:
    """Return the token ids of a turn that was not sampled in this format; `number` is the number of earlier calls. A
    call keeps its raw text if it did not parse, if its tool is unknown, or if this format reads the text as the same
    call or cannot express the call. All other calls are written anew in this format."""

    def spelled(call: ToolCall, number: int) -> str:
        schema = schemas.get(call.name)
        same = call.arguments is None or form.parse_call(call.raw, schemas) == (call.name, call.arguments)
        if same or schema is None or call.arguments is None:
            return call.raw
        try:
            return form.format_call(call.name, call.arguments, schema, number)
        except ValueError:
            return call.raw

    raws = [spelled(call, number + index) for index, call in enumerate(turn.calls)]
    return form.render_turn(turn.thinking, turn.text, raws)


def parse_turn(form: Format, sampled: Sequence[int], schemas: Mapping[str, CallSchema], label: str) -> Turn:
    """Parse sampled ids into a turn; this never fails. `label` is the prefix of the calls' ids."""
    parsed = form.parse(sampled)
    calls = []
    for index, call in enumerate(parsed.calls):
        found = form.parse_call(call.raw, schemas)
        if not call.complete:
            last = index == len(parsed.calls) - 1
            found = CUT_OFF if last and not parsed.ended else NOT_CLOSED
        if isinstance(found, str):
            calls.append(ToolCall(f"{label}.{index}", form.call_name(call.raw), None, call.raw, found))
        else:
            calls.append(ToolCall(f"{label}.{index}", found[0], found[1], call.raw))
    return Turn(
        text=parsed.text,
        thinking=parsed.thinking,
        calls=tuple(calls),
        sampled_tokens=len(sampled),
        thinking_tokens=parsed.thinking_tokens,
        call_tokens=parsed.call_tokens,
        message_tokens=parsed.message_tokens,
        cut_off=not parsed.ended,
    )
