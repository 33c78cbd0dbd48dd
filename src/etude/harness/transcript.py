"""The ids of a conversation, as the model saw and wrote them: what a token policy is given to extend.

Invariant (exact prefix): inside one conversation every prompt is the last prompt, plus the ids that were sampled, plus
the end marker if they were cut off, plus the ids of what was said since. Nothing sampled is encoded again. All of it is
recorded in a TraceBuilder, one segment per conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from etude.harness.policy import Conversation, Message, Role, ToolCall, Turn
from etude.text.calls import CallSchema, call_name, parse_call
from etude.text.compact import CompactFormat
from etude.trace.builder import TraceBuilder
from etude.trace.trace import SegmentKind

CUT_OFF = "cut off"
"""The problem of a call that the token limit interrupted: it may be half of what was meant, so it is not run."""


class Transcript:
    def __init__(self, form: CompactFormat, recorder: TraceBuilder) -> None:
        self._form = form
        self._recorder = recorder
        self._ids: list[int] = []
        self._conversation: str | None = None
        self._segment: int | None = None
        self._given = 0
        """Messages of the conversation that `_ids` holds."""
        self._pending: tuple[str, int, list[int]] = ("", -1, [])
        self._experts_from = 0

    def prompt(self, conversation: Conversation) -> list[int]:
        """The ids to extend; the conversation's last message is not the assistant's."""
        new = self._new_ids(conversation)
        return [*self._ids, *new] if conversation.id == self._conversation else new

    def length(self, conversation: Conversation) -> int:
        held = len(self._ids) if conversation.id == self._conversation else 0
        return held + len(self._new_ids(conversation))

    def experts_from(self, conversation: Conversation) -> int:
        """The first position whose experts are not recorded yet."""
        return self._experts_from if conversation.id == self._conversation else 0

    def sampled(
        self,
        conversation: Conversation,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        versions: NDArray[np.int32],
        experts: NDArray[np.uint16] | None = None,
        experts_from: int = 0,
    ) -> None:
        """The policy extended `prompt(conversation)` by these tokens; the loop will append the turn as one message."""
        new = self._new_ids(conversation)
        if conversation.id != self._conversation:
            kind = SegmentKind.START if conversation.parent is None else SegmentKind.SUMMARY
            parent = self._segment if conversation.parent is not None else None
            self._segment = self._recorder.start_segment(kind, parent, new)
            self._conversation, self._ids = conversation.id, []
        else:
            self._recorder.extend(new)
        self._recorder.sampled(tokens, logprobs, versions, experts=experts, experts_from=experts_from)
        self._ids += [*new, *tokens.tolist()]
        self._given = len(conversation.messages) + 1
        self._pending = ("", -1, [])
        # The last sampled token was never fed to the network: its experts come with the next request.
        self._experts_from = len(self._ids) - 1

    def _new_ids(self, conversation: Conversation) -> list[int]:
        """What has to follow the ids held so far."""
        messages = conversation.messages
        key, size, ids = self._pending
        if (key, size) == (conversation.id, len(messages)):
            return ids
        if conversation.id == self._conversation:
            ids = [*self._form.closing(self._ids), *self._render(messages[self._given :])]
        else:
            if [m.role for m in messages[:2]] != [Role.SYSTEM, Role.USER]:
                raise ValueError("a conversation begins with a system and a user message")
            ids = self._join(self._form.opening(messages[0].text, messages[1].text), messages[2:])
        self._pending = (conversation.id, len(messages), ids)
        return ids

    def _join(self, ids: list[int], messages: Sequence[Message]) -> list[int]:
        """`ids` end where the assistant begins; where somebody else speaks next, that marker goes."""
        if messages and messages[0].role is not Role.ASSISTANT and ids:
            ids = ids[:-1]
        return ids + self._render(messages)

    def _render(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for role, group in groupby(messages, key=lambda message: message.role):
            said = list(group)
            if role is Role.ASSISTANT:
                # Only in a history that this transcript did not witness: not sampled here, so not trained on.
                for message in said:
                    turn = message.turn or Turn(message.text)
                    ids += self._form.render_turn(turn.thinking, turn.text, [call.raw for call in turn.calls])
                continue
            pieces = (
                [self._form.tool_outputs([message.text for message in said])]
                if role is Role.TOOL
                else [self._form.user_message(message.text) for message in said]
            )
            for piece in pieces:
                if ids and ids[-1] == self._form.tokenizer.special.assistant:
                    ids.pop()
                ids += piece
        return ids


def parse_turn(form: CompactFormat, sampled: Sequence[int], schemas: Mapping[str, CallSchema], label: str) -> Turn:
    """The turn that the sampled ids say; any ids give one."""
    parsed = form.parse(sampled)
    calls = []
    for place, call in enumerate(parsed.calls):
        found = parse_call(call.raw, schemas)
        last = place == len(parsed.calls) - 1
        if last and not parsed.ended:
            found = CUT_OFF
        if isinstance(found, str):
            calls.append(ToolCall(f"{label}.{place}", call_name(call.raw), None, call.raw, found))
        else:
            calls.append(ToolCall(f"{label}.{place}", found[0], found[1], call.raw))
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
