"""A conversation is encoded the same at once and turn by turn, in every format."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.formats.golden import SCHEMAS, TOOLS
from tests.text.formats.tiny import Letters

from etude.text import Exchange, Format
from etude.text.formats import FORMATS
from etude.trace.conversation.encoding import ConversationEncoder, ids_of
from etude.trace.conversation.messages import Message, Role, ToolCall, Turn
from etude.trace.conversation.turn_tokens import calls_in, written_turn

LETTERS = Letters()
FORMS: dict[str, Format] = {name: make(LETTERS, TOOLS) for name, make in FORMATS.items()}
CALL = ToolCall("c", "list", {}, "list")
texts = st.text("ab <", max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """System message or none, user, then turns with what follows each: tool outputs, users, system messages."""
    messages = [Message(Role.SYSTEM, draw(texts))] if draw(st.booleans()) else []
    messages.append(Message(Role.USER, draw(texts)))
    for _ in range(draw(st.integers(0, 3))):
        calls = draw(st.integers(0, 2))
        messages.append(Message(Role.ASSISTANT, turn=Turn(draw(texts), calls=(CALL,) * calls)))
        messages += [Message(Role.TOOL, draw(texts), call=CALL)] * calls
        roles = st.sampled_from([Role.USER, Role.SYSTEM])
        for role in draw(st.lists(roles, min_size=0 if calls else 1, max_size=2)):
            messages.append(Message(role, draw(texts)))
    return messages


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=30, deadline=None)
@given(messages=conversations())
def test_turn_by_turn_is_as_at_once(name: str, messages: list[Message]) -> None:
    form = FORMS[name]
    encoder = ConversationEncoder(form, SCHEMAS)
    turns = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    whole = encoder.begin(messages)
    encoded = encoder.begin(messages[: turns[0]] if turns else messages)
    for place, end in zip(turns, [*turns, len(messages)][1:], strict=True):
        turn = messages[place].turn
        assert turn is not None
        sampled = written_turn(form, turn, SCHEMAS, calls_in(messages[:place]))
        exchanges = [*encoded.exchanges, Exchange(encoded.given, sampled)]
        encoded = encoder.go_on(exchanges, messages[:end], place + 1)
        assert encoded.exchanges == exchanges, "what was there is not encoded again"
        # Turns that were not sampled here may follow.
        jumped = encoder.go_on(exchanges, messages, place + 1)
        assert (jumped.exchanges, jumped.given) == (whole.exchanges, whole.given)
    assert (encoded.exchanges, encoded.given) == (whole.exchanges, whole.given)
    answering = list(form.answering)
    said = ids_of(whole.exchanges) + whole.given
    if messages[-1].role is not Role.TOOL:
        assert said[-len(answering) :] == answering


@pytest.mark.parametrize("name", FORMATS)
def test_who_says_what(name: str) -> None:
    form = FORMS[name]
    messages = [Message(Role.USER, "a"), Message(Role.SYSTEM, "b")]
    before = form.opening(None, "a")[: -len(form.answering)]
    later = form.system_message("b")
    expected = before + (form.user_message("b") if later is None else later)
    assert ConversationEncoder(form, SCHEMAS).begin(messages).given == expected
    for wrong in ([], [Message(Role.SYSTEM, "a")], [Message(Role.TOOL, "a")], [messages[1], messages[1], messages[0]]):
        with pytest.raises(ValueError, match="begins with a user message"):
            ConversationEncoder(form, SCHEMAS).begin(wrong)
