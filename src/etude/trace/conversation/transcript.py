"""The token ids of conversations, exactly as the model read and sampled them, from which token policies build prompts.

Invariant (exact prefix): within one segment, every prompt consists of the previous prompt, the sampled ids, the end
marker if the turn was cut off, and the ids of the messages since then. Sampled ids are never re-encoded. All ids are
recorded in a TraceBuilder, one segment per conversation. A conversation gets another segment if the chat template
rewrites history so that sampled ids no longer appear (`SegmentKind.REWRITTEN`), or if the conversation was cut back to
an earlier message, as after an interrupted summary (`SegmentKind.FORK`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.text.calls import CallSchema
from etude.text.format import Exchange, Format
from etude.trace.builder import TraceBuilder
from etude.trace.conversation.encoding import ConversationEncoder, ids_of
from etude.trace.conversation.messages import Conversation, Message
from etude.trace.trace import SegmentKind


class _Next(NamedTuple):
    """The next prompt of a conversation. It extends the previous prompt, or starts a new segment of the trace."""

    exchanges: list[Exchange]
    """All earlier turns of this conversation: for each, the token ids given to the model and those that it sampled."""
    given: list[int]
    """The ids after the model's last turn, such as new tool results; before its first turn, the whole prompt."""
    begins: SegmentKind | None
    """Kind of the trace segment that this prompt starts; None if it extends the previous prompt."""
    fresh: list[int]
    """The ids that follow the previous prompt and the turn sampled after it. Only used if `begins` is None."""

    @property
    def prompt(self) -> list[int]:
        return [*ids_of(self.exchanges), *self.given]


class Transcript:
    def __init__(self, form: Format, recorder: TraceBuilder, schemas: Mapping[str, CallSchema]) -> None:
        self._encoder = ConversationEncoder(form, schemas)
        self._recorder = recorder
        self._exchanges: list[Exchange] = []
        self._length = 0
        """Total number of ids, given and sampled, in `_exchanges`."""
        self._conversation: str | None = None
        self._segment: int | None = None
        self._given = 0
        """Number of the conversation's messages that are encoded in `_exchanges`, up to the last turn of the model."""
        self._last: Message | None = None
        """The message before the model's last turn. If a conversation now has another message there, it was cut
        back."""
        self._pending: tuple[str, int, Message, _Next] | None = None
        self._experts_from = 0

    def prompt(self, conversation: Conversation) -> list[int]:
        """Return the next prompt's ids. The conversation's last message must not be the assistant's."""
        return self._next(conversation).prompt

    def length(self, conversation: Conversation) -> int:
        following = self._next(conversation)
        return self._length + len(following.fresh) if following.begins is None else len(following.prompt)

    def experts_from(self, conversation: Conversation) -> int:
        """Return the first position in the next prompt's segment whose routed experts (of mixture-of-experts models)
        are not recorded yet."""
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
        """Record the tokens that were sampled after `prompt(conversation)`, before the turn is appended to the
        conversation. `experts` are the routed experts of the segment's positions from `experts_from` on."""
        following = self._next(conversation)
        if following.begins is None:
            self._recorder.extend(following.fresh, segment=self._segment)
        else:
            parent = None if following.begins is SegmentKind.START else self._segment
            self._segment = self._recorder.start_segment(following.begins, parent, following.prompt)
            self._conversation = conversation.id
        self._recorder.sampled(
            tokens, logprobs, versions, experts=experts, experts_from=experts_from, segment=self._segment
        )
        self._exchanges = [*following.exchanges, Exchange(following.given, tokens.tolist())]
        self._length = sum(len(given) + len(sampled) for given, sampled in self._exchanges)
        self._given = len(conversation.messages) + 1
        self._last = conversation.messages[-1]
        self._pending = None
        # The last sampled token was never fed to the network, so the next request returns its experts.
        self._experts_from = self._length - 1

    def _next(self, conversation: Conversation) -> _Next:
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
        """Return the first prompt of a new segment: all messages of the conversation are encoded anew."""
        encoded = self._encoder.begin(conversation.messages)
        kind = SegmentKind.START if conversation.parent is None else SegmentKind.SUMMARY
        return _Next(encoded.recalled, encoded.given, kind, [])

    def _continued(self, messages: Sequence[Message]) -> _Next:
        """Return the prompt after the last recorded turn. Only the messages since that turn are encoded."""
        encoded = self._encoder.go_on(self._exchanges, messages, self._given)
        fresh = [*ids_of(encoded.exchanges[len(self._exchanges) :]), *encoded.given]
        begins = None if encoded.recalled == encoded.exchanges else SegmentKind.REWRITTEN
        return _Next(encoded.recalled, encoded.given, begins, fresh)
