"""Encodes the messages of a conversation as a prompt, after turns whose token ids are already known.

Invariant: the ids of earlier exchanges are used as they are, never decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from etude.text.calls import CallSchema
from etude.text.format import Exchange, Format, following
from etude.trace.conversation.messages import Message, Role, Turn
from etude.trace.conversation.turn_tokens import calls_in, written_turn


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation up to a prompt."""

    exchanges: list[Exchange]
    """All earlier turns: for each, the ids given to the model and those that it sampled. Turns that were not sampled in
    this format are written in it."""
    recalled: list[Exchange]
    """`exchanges` as the format renders them from now on; the same unless its template rewrites history."""
    given: list[int]
    """The ids after the model's last turn, such as new tool results; before its first turn, the whole prompt."""


class ConversationEncoder:
    def __init__(self, form: Format, schemas: Mapping[str, CallSchema]) -> None:
        self._form = form
        self._schemas = schemas

    def begin(self, messages: Sequence[Message]) -> Encoded:
        """Encode a whole conversation, whose last message is not the assistant's. A system message after the first
        message is written as the user's if the format has none there."""
        first = 1 if messages and messages[0].role is Role.SYSTEM else 0
        if len(messages) <= first or messages[first].role is not Role.USER:
            raise ValueError("a conversation begins with a user message, after at most one system message")
        opening = self._form.opening(messages[0].text if first else None, messages[first].text)
        return self._said([], opening, messages, first + 1)

    def go_on(self, exchanges: Sequence[Exchange], messages: Sequence[Message], start: int) -> Encoded:
        """Encode the messages from index `start` on, after `exchanges`, which hold those before."""
        last = exchanges[-1]
        return self._said(exchanges, self._form.closing([*last.given, *last.sampled]), messages, start)

    def _said(self, before: Sequence[Exchange], ids: list[int], messages: Sequence[Message], start: int) -> Encoded:
        """Encode the messages from index `start` on. Earlier messages are already encoded: in the exchanges `before`,
        and in `ids`, the ids after the last exchange."""
        exchanges = list(before)
        past, calls = 0, calls_in(messages[:start])
        for role, group in groupby(messages[start:], key=lambda message: message.role):
            said = list(group)
            if role is Role.ASSISTANT:
                # These turns are from a history that was not recorded here; they count as given, not sampled.
                for message in said:
                    turn = message.turn or Turn(message.text)
                    written = written_turn(self._form, turn, self._schemas, calls)
                    calls += len(turn.calls)
                    exchanges.append(Exchange(ids, written))
                    ids = self._form.closing(written)
                continue
            if role is Role.TOOL:
                pieces = [self._answers(said)]
            elif role is Role.SYSTEM:
                later = (self._form.system_message(message.text) for message in said)
                pieces = [written for written in later if written is not None]
            else:
                pieces = []
            if not pieces:
                pieces = [self._form.user_message(message.text) for message in said]
                past = len(exchanges)
            for piece in pieces:
                said_last = ids or (exchanges[-1].sampled if exchanges else [])
                ids = self._without_answering(ids) + following(self._form, said_last, piece)
        return Encoded(exchanges, [*self._form.recall(exchanges[:past]), *exchanges[past:]], ids)

    def _without_answering(self, ids: list[int]) -> list[int]:
        """Remove the ids at a prompt's end that begin the assistant's turn, so that another role can follow."""
        answering = list(self._form.answering)
        return ids[: -len(answering)] if ids[-len(answering) :] == answering else ids

    def _answers(self, messages: Sequence[Message]) -> list[int]:
        calls = [message.call.raw if message.call else "" for message in messages]
        return self._form.tool_outputs([message.text for message in messages], calls)


def ids_of(exchanges: Sequence[Exchange]) -> list[int]:
    return [*chain.from_iterable(chain.from_iterable(exchanges))]
