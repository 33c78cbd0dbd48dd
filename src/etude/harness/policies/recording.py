"""Records another policy's turns as tokens, as if a model had sampled them, which turns demonstrations into traces.

The loop gets the turn that is parsed from the recorded token ids, under the same limits that a model has. So a
demonstration never does anything that its tokens do not contain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.harness.policy import ContextFull, Policy
from etude.harness.schema import ToolSchema
from etude.text.format import Format
from etude.trace.builder import TraceBuilder
from etude.trace.conversation.messages import Conversation, Turn
from etude.trace.conversation.transcript import Transcript
from etude.trace.conversation.turn_tokens import calls_in, parse_turn, written_turn
from etude.trace.trace import UNSAMPLED_VERSION


class RecordingPolicy:
    """Wraps a policy that returns text, and records the tokens of its turns as if they were sampled, with log-prob 0
    and no weights version."""

    def __init__(
        self, inner: Policy, form: Format, schemas: Sequence[ToolSchema], context: int, recorder: TraceBuilder
    ) -> None:
        self.name = inner.name
        self._inner = inner
        self._form = form.offering([schema.openai() for schema in schemas])
        self._schemas = {schema.name: schema.call_schema() for schema in schemas}
        self._context = context
        self.recorder = recorder
        self._transcript = Transcript(self._form, recorder, self._schemas)
        self._turns = 0

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        prompt = self._transcript.prompt(conversation)
        room = self._context - len(prompt)
        if room < 1:
            raise ContextFull(f"the prompt has {len(prompt)} tokens, the context holds {self._context}")
        turn = await self._inner.act(conversation, max_tokens=max_tokens)
        written = written_turn(self._form, turn, self._schemas, calls_in(conversation.messages))
        ids = np.array(written[: min(max_tokens, room)], np.int32)
        nothing = np.zeros(len(ids), np.float32)
        self._transcript.sampled(conversation, ids, nothing, np.full(len(ids), UNSAMPLED_VERSION, np.int32))
        self._turns += 1
        return parse_turn(self._form, ids.tolist(), self._schemas, str(self._turns))

    def tokens(self, conversation: Conversation) -> int:
        return self._transcript.length(conversation)

    def count(self, text: str) -> int:
        return self._form.count(text)
