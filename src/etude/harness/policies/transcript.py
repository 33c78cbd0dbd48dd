"""The token ids of conversations, exactly as the model read and sampled them. Token policies build their prompts from
these ids.

Invariant (exact prefix): within one segment, every prompt consists of the previous prompt, the sampled ids, the end
marker if the turn was cut off, and the ids of the messages since then. Sampled ids are never re-encoded. All ids are
recorded in a TraceBuilder, one segment per conversation. A conversation gets another segment if the chat template
rewrites history so that sampled ids no longer appear (`SegmentKind.REWRITTEN`), or if the conversation was cut back to
an earlier message, as after an interrupted summary (`SegmentKind.FORK`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.harness.policies.turn_tokens import calls_in, written_turn
from etude.harness.policy import Conversation, Message, Role, Turn
from etude.text.calls import CallSchema
from etude.text.format import Exchange, Format
from etude.trace.builder import TraceBuilder
from etude.trace.trace import SegmentKind


class _Next(NamedTuple):
    """The next prompt of a conversation. It either extends the previous prompt or starts a new segment of the trace, in
    which each prompt extends the one before."""

    exchanges: list[Exchange]
    """All earlier turns of this conversation: for each, the token ids given to the model and those that it sampled."""
    given: list[int]
    """The token ids of this prompt that follow those of the model's earlier turns, such as the ids of new tool results.
    Before the model's first turn this is the whole prompt."""
    begins: SegmentKind | None
    """Kind of the trace segment that this prompt starts; None if the prompt extends the previous one, in the same
    segment."""
    fresh: list[int]
    """The token ids of this prompt that follow the previous prompt and the ids that the model sampled after it. Used
    only if this prompt extends the previous one."""

    @property
    def prompt(self) -> list[int]:
        return [*_flat(self.exchanges), *self.given]


class Transcript:
    """Keeps the token ids of one policy's conversations, builds prompts from them and records them in a
    TraceBuilder."""

    def __init__(self, form: Format, recorder: TraceBuilder, schemas: Mapping[str, CallSchema]) -> None:
        self._form = form
        self._recorder = recorder
        self._schemas = schemas
        self._exchanges: list[Exchange] = []
        self._length = 0
        """Total number of token ids, given to the model and sampled, in the recorded turns (`_exchanges`)."""
        self._conversation: str | None = None
        self._segment: int | None = None
        self._given = 0
        """Number of messages, counted from the conversation's beginning, whose token ids are recorded in
        `_exchanges`."""
        self._last: Message | None = None
        """The message directly before the model's last recorded turn. If the conversation has another message at this
        place now, it was cut back to an earlier message."""
        self._pending: tuple[str, int, Message, _Next] | None = None
        self._experts_from = 0

    def prompt(self, conversation: Conversation) -> list[int]:
        """Return the token ids of the next prompt. The conversation's last message must not be from the assistant."""
        return self._next(conversation).prompt

    def length(self, conversation: Conversation) -> int:
        """Return the number of tokens of the next prompt."""
        following = self._next(conversation)
        return self._length + len(following.fresh) if following.begins is None else len(following.prompt)

    def experts_from(self, conversation: Conversation) -> int:
        """Return the first position, in the trace segment to which the next prompt belongs, for which the routed
        experts are not recorded yet. It is 0 if the prompt starts a new segment. Only mixture-of-experts models have
        routed experts."""
        return self._experts_from if self._next(conversation).begins is None else 0

    def sampled(
        self,
        conversation: Conversation,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        versions: NDArray[np.int32],
        experts: NDArray[np.uint16] | None = None,
        experts_from: int = 0,
    ) -> None:
        """Record the tokens that were sampled after `prompt(conversation)`. Call this before the turn is appended to
        the conversation as one message.

        `experts` are the routed experts of the positions from `experts_from` on, counted from the start of the trace
        segment.
        """
        following = self._next(conversation)
        if following.begins is None:
            self._recorder.extend(following.fresh)
        else:
            parent = None if following.begins is SegmentKind.START else self._segment
            self._segment = self._recorder.start_segment(following.begins, parent, following.prompt)
            self._conversation = conversation.id
        self._recorder.sampled(tokens, logprobs, versions, experts=experts, experts_from=experts_from)
        self._exchanges = [*following.exchanges, Exchange(following.given, tokens.tolist())]
        self._length = sum(len(given) + len(sampled) for given, sampled in self._exchanges)
        self._given = len(conversation.messages) + 1
        self._last = conversation.messages[-1]
        self._pending = None
        # The last sampled token was never fed to the network, so the next request returns its experts.
        self._experts_from = self._length - 1

    def _next(self, conversation: Conversation) -> _Next:
        """Return the next prompt; it is cached until a message is appended."""
        messages = conversation.messages
        known = self._pending
        if known is None or known[:2] != (conversation.id, len(messages)) or known[2] is not messages[-1]:
            if conversation.id != self._conversation:
                following = self._begun(conversation)
            elif len(messages) < self._given or messages[self._given - 2] is not self._last:
                # The conversation was cut back to before the last turn, and continues from there.
                following = self._begun(conversation)._replace(begins=SegmentKind.FORK)
            else:
                following = self._continued(messages)
            known = self._pending = (conversation.id, len(messages), messages[-1], following)
        return known[3]

    def _begun(self, conversation: Conversation) -> _Next:
        """Return the next prompt of a conversation by encoding all its messages, since no earlier prompt can be
        extended."""
        messages = conversation.messages
        if [m.role for m in messages[:2]] != [Role.SYSTEM, Role.USER]:
            raise ValueError("a conversation begins with a system and a user message")
        opening = self._form.opening(messages[0].text, messages[1].text)
        exchanges, given, past = self._said([], opening, messages, 2)
        kind = SegmentKind.START if conversation.parent is None else SegmentKind.SUMMARY
        return _Next([*self._form.recall(exchanges[:past]), *exchanges[past:]], given, kind, [])

    def _continued(self, messages: Sequence[Message]) -> _Next:
        """Return the next prompt of the recorded conversation by encoding only the messages after the last recorded
        turn."""
        last = self._exchanges[-1]
        closing = self._form.closing([*last.given, *last.sampled])
        exchanges, given, past = self._said(self._exchanges, closing, messages, self._given)
        fresh = [*_flat(exchanges[len(self._exchanges) :]), *given]
        shown = [*self._form.recall(exchanges[:past]), *exchanges[past:]]
        return _Next(shown, given, None if shown == exchanges else SegmentKind.REWRITTEN, fresh)

    def _said(
        self, before: Sequence[Exchange], ids: list[int], messages: Sequence[Message], start: int
    ) -> tuple[list[Exchange], list[int], int]:
        """Encode the messages from index `start` on, and append them to the ids of the earlier messages. These are the
        exchanges `before` (for each turn of the model, the ids given to it and those that it sampled), then `ids`,
        which no turn follows yet.

        Return three values: all exchanges, the ids after the last exchange, and the number of exchanges before the last
        encoded user message (0 if no encoded message is from the user).
        """
        exchanges = list(before)
        past, calls = 0, calls_in(messages[:start])
        for role, group in groupby(messages[start:], key=lambda message: message.role):
            said = list(group)
            if role is Role.ASSISTANT:
                # These turns are from a history that this transcript did not record; they count as given, not sampled.
                for message in said:
                    turn = message.turn or Turn(message.text)
                    written = written_turn(self._form, turn, self._schemas, calls)
                    calls += len(turn.calls)
                    exchanges.append(Exchange(ids, written))
                    ids = self._form.closing(written)
                continue
            if role is Role.TOOL:
                pieces = [self._answers(said)]
            else:
                pieces = [self._form.user_message(message.text) for message in said]
                past = len(exchanges)
            for piece in pieces:
                ids = self._without_answering(ids) + piece
        return exchanges, ids, past

    def _without_answering(self, ids: list[int]) -> list[int]:
        """Return the token ids of a prompt without the ids at its end, if any, that begin the assistant's turn. A
        message of another role can then be appended."""
        answering = list(self._form.answering)
        return ids[: -len(answering)] if ids[-len(answering) :] == answering else ids

    def _answers(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of tool messages, which contain the results of one turn's calls."""
        calls = [message.call.raw if message.call else "" for message in messages]
        return self._form.tool_outputs([message.text for message in messages], calls)


def _flat(exchanges: Sequence[Exchange]) -> list[int]:
    """Return the ids of all exchanges as one list: for each turn, the ids given to the model, then the ids that it
    sampled."""
    return [*chain.from_iterable(chain.from_iterable(exchanges))]
