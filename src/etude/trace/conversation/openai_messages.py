"""Converts conversations to OpenAI chat messages, for endpoints and for display."""

from __future__ import annotations

import json
from typing import Any

from etude.trace.conversation.messages import Conversation, Message, Role, ToolCall

NOT_CARRIED_OUT = "(not carried out)"
"""Text of the tool message for a call that was never run, because the run ended before."""
THINKING = "reasoning_content"
"""Name of the message field in which most endpoints send the model's thinking."""


def openai_messages(conversation: Conversation, thinking: str = "") -> list[dict[str, Any]]:
    """Convert a conversation to OpenAI chat messages.

    Endpoints reject a tool call without a result if messages follow it, so such a call gets the result NOT_CARRIED_OUT.
    `thinking` is the name of the message field for the model's thinking; if empty, thinking is left out.
    """
    said: list[dict[str, Any]] = []
    waiting: list[ToolCall] = []
    for message in conversation.messages:
        if message.role is Role.TOOL:
            waiting = waiting[1:]
        else:
            said += [{"role": "tool", "tool_call_id": call.id, "content": NOT_CARRIED_OUT} for call in waiting]
            waiting = list(message.turn.calls) if message.turn else []
        said.append(_message(message) | _thought(message, thinking))
    return said


def whole_chain(conversation: Conversation) -> list[dict[str, Any]]:
    """Convert a conversation and its parents to OpenAI messages with thinking. The oldest conversation comes first."""
    return [message for link in chain_of(conversation) for message in openai_messages(link, THINKING)]


def chain_of(conversation: Conversation) -> list[Conversation]:
    """Return the conversation and its parents, which self-summaries replaced, oldest first."""
    chain: list[Conversation] = []
    link: Conversation | None = conversation
    while link is not None:
        chain.append(link)
        link = link.parent
    return chain[::-1]


def _message(message: Message) -> dict[str, Any]:
    if message.role is Role.TOOL and message.call is not None:
        return {"role": "tool", "tool_call_id": message.call.id, "content": message.text}
    if message.turn is None or not message.turn.calls:
        return {"role": message.role.value, "content": message.text}
    return {
        "role": "assistant",
        "content": message.text or None,
        "tool_calls": [_call(call) for call in message.turn.calls],
    }


def _thought(message: Message, name: str) -> dict[str, str]:
    return {name: message.turn.thinking} if name and message.turn is not None and message.turn.thinking else {}


def _call(call: ToolCall) -> dict[str, Any]:
    # A call that did not parse is sent back as the model wrote it.
    arguments = call.raw if call.arguments is None else json.dumps(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
