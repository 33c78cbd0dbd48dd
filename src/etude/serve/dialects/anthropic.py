"""Anthropic's messages. A message in the middle may be the system's. What steers only Anthropic's own service
(cache_control, metadata, context_management, effort, the budget of thinking) is accepted and changes nothing."""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from etude.serve.answer import Answer, CallMade, Delta, Event, Finish
from etude.serve.dialects.exchange import Exchange, Name, TopP, Wire, read_as, require, sse
from etude.serve.gateway import Served
from etude.serve.question import Function, Question, Said, SaidCall, Wanted
from etude.serve.refusal import Problem, Refused
from etude.trace.conversation.messages import Role

_ERRORS = {
    Problem.INVALID: (400, "invalid_request_error"),
    Problem.CONTEXT: (400, "invalid_request_error"),
    Problem.KEY: (401, "authentication_error"),
    Problem.UNKNOWN_MODEL: (404, "not_found_error"),
    Problem.UNKNOWN_PLACE: (404, "not_found_error"),
    Problem.TOO_LARGE: (413, "request_too_large"),
    Problem.TOO_SLOW: (408, "invalid_request_error"),
    Problem.KEY_BUSY: (429, "rate_limit_error"),
    Problem.BUSY: (529, "overloaded_error"),
    Problem.ENDING: (529, "overloaded_error"),
    Problem.ENGINE: (503, "api_error"),
}
_FINISH = {Finish.STOP: "end_turn", Finish.LENGTH: "max_tokens", Finish.CALLS: "tool_use"}


class TextWire(Wire):
    type: Name
    text: str | None = None


class BlockWire(Wire):
    """A block of content. Which fields it has depends on its type."""

    type: Name
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[TextWire] | None = None


class MessageWire(Wire):
    role: Literal["user", "assistant", "system"]
    content: str | list[BlockWire]


class ToolWire(Wire):
    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class CountRequest(Wire):
    model: Name
    messages: Annotated[list[MessageWire], Field(min_length=1)]
    system: str | list[TextWire] | None = None
    tools: list[ToolWire] | None = None
    tool_choice: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[Name] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: TopP | None = None
    top_k: int | None = None
    output_config: dict[str, Any] | None = None


class AnthropicDialect:
    path: ClassVar[str] = "/v1/messages"
    request: ClassVar[type[Wire]] = MessagesRequest

    def __init__(self, served: Served) -> None:
        self._served = served

    def read(self, body: bytes) -> Exchange:
        return MessagesExchange(read_as(MessagesRequest, body))

    def read_count(self, body: bytes) -> Question:
        """Return the question whose prompt is to be counted."""
        return _question(read_as(CountRequest, body))[0]

    def refusal(self, refused: Refused) -> tuple[int, dict[str, Any]]:
        status, kind = _ERRORS[refused.problem]
        return status, {"type": "error", "error": {"type": kind, "message": refused.message}}


class MessagesExchange:
    def __init__(self, asked: MessagesRequest) -> None:
        form = (asked.output_config or {}).get("format")
        require({"top_k": (asked.top_k, (-1, 0)), "output_config.format": (form, ())})
        wanted = Wanted(
            max_tokens=asked.max_tokens,
            temperature=1.0 if asked.temperature is None else asked.temperature,
            top_p=1.0 if asked.top_p is None else asked.top_p,
            stop=tuple(asked.stop_sequences or ()),
        )
        self.question, self.warnings = _question(asked, wanted)
        self.streamed = bool(asked.stream)
        self._id, self._model = secrets.token_hex(12), asked.model
        self._block = -1
        """Index of the block that is being written."""
        self._kind = ""
        """Kind of that block; empty if none is open."""
        self._called = False

    def whole(self, answer: Answer) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if answer.thinking:
            content.append({"type": "thinking", "thinking": answer.thinking, "signature": self._id})
        calls = [(call, _input(call)) for call in answer.calls]
        # A call that did not parse has no arguments by name, without which there are no calls here.
        text = answer.text + "".join(call.arguments for call, given in calls if given is None)
        if text:
            content.append({"type": "text", "text": text})
        content += [_tool_use(call, given) for call, given in calls if given is not None]
        self._called = any(given is not None for _, given in calls)
        return self._message(content, len(answer.prompt)) | self._ended(answer) | {"usage": _usage(answer)}

    def opening(self, prompt: int) -> bytes:
        return self._event("message_start", message=self._message([], prompt))

    def event(self, event: Event) -> bytes:
        if isinstance(event, Delta):
            return self._text("thinking" if event.kind == "thinking" else "text", event.text)
        if isinstance(event, CallMade):
            given = _input(event.call)
            if given is None:
                return self._text("text", event.call.arguments)
            self._called = True
            delta = {"type": "input_json_delta", "partial_json": event.call.arguments}
            return self._open("tool_use", _tool_use(event.call, {})) + self._delta(delta) + self._close()
        delta = self._ended(event)
        return (
            self._close() + self._event("message_delta", delta=delta, usage=_usage(event)) + self._event("message_stop")
        )

    def failure(self, refused: Refused) -> bytes:
        _, kind = _ERRORS[refused.problem]
        return self._event("error", error={"type": kind, "message": refused.message})

    def _text(self, kind: str, text: str) -> bytes:
        opened = b""
        if self._kind != kind:
            empty = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            opened = self._close() + self._open(kind, empty)
        return opened + self._delta({"type": f"{kind}_delta", kind: text})

    def _open(self, kind: str, block: dict[str, Any]) -> bytes:
        closed = self._close()
        self._block, self._kind = self._block + 1, kind
        return closed + self._event("content_block_start", index=self._block, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=self._block, delta=delta)

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        signed = self._delta({"type": "signature_delta", "signature": self._id}) if self._kind == "thinking" else b""
        self._kind = ""
        return signed + self._event("content_block_stop", index=self._block)

    def _event(self, name: str, **fields: Any) -> bytes:
        return sse({"type": name, **fields}, name)

    def _message(self, content: list[dict[str, Any]], prompt: int) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": prompt,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        }

    def _ended(self, answer: Answer) -> dict[str, Any]:
        reason = _FINISH[answer.finish]
        if answer.stopped_by is not None:
            reason = "stop_sequence"
        elif answer.finish is Finish.CALLS and not self._called:
            reason = "end_turn"
        return {"stop_reason": reason, "stop_sequence": answer.stopped_by}


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "input_tokens": len(answer.prompt) - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": len(answer.tokens),
    }


def _tool_use(call: SaidCall, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _input(call: SaidCall) -> dict[str, Any] | None:
    """Return a call's arguments; None if it did not parse."""
    try:
        given = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def _question(asked: CountRequest, wanted: Wanted | None = None) -> tuple[Question, tuple[str, ...]]:
    """Return the question, and what of the request was left out."""
    choice = str((asked.tool_choice or {}).get("type", "auto"))
    require({"tool_choice.type": (choice, ("auto", "none"))})
    functions: list[Function] = []
    left_out = []
    for tool in asked.tools or ():
        if tool.type in (None, "custom"):
            schema = tool.input_schema or {"type": "object", "properties": {}}
            functions.append({"name": tool.name, "description": tool.description or "", "parameters": schema})
        else:
            left_out.append(tool.type)
    said = [Said(Role.SYSTEM, _texts(asked.system, "system"))] if asked.system else []
    for place, message in enumerate(asked.messages):
        said += _said(message, f"messages.{place}")
    question = Question(
        tuple(said), None, tuple(functions) if choice == "auto" else (), wanted or Wanted(), asked.model
    )
    return question, ((f"tools left out: {', '.join(left_out)}",) if left_out else ())


def _said(message: MessageWire, place: str) -> list[Said]:
    role = Role(message.role)
    if isinstance(message.content, str):
        return [Said(role, message.content)]
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[SaidCall] = []
    outputs: list[Said] = []
    for number, block in enumerate(message.content):
        if block.type == "text" and block.text is not None:
            texts.append(block.text)
        elif block.type == "thinking" and role is Role.ASSISTANT:
            thinking.append(block.thinking or "")
        elif block.type == "tool_use" and role is Role.ASSISTANT and block.id and block.name:
            calls.append(SaidCall(block.id, block.name, json.dumps(block.input or {}, ensure_ascii=False)))
        elif block.type == "tool_result" and role is Role.USER and block.tool_use_id:
            text = _texts(block.content, f"{place}.content.{number}.content")
            outputs.append(Said(Role.TOOL, text, answers=block.tool_use_id))
        elif block.type != "redacted_thinking":
            where = f"{place}.content.{number}"
            raise Refused(
                Problem.INVALID,
                f"{where}: a block of type {block.type!r} is not supported here, or lacks a field",
                field=where,
            )
    if role is Role.USER and outputs and not texts:
        return outputs
    return [*outputs, Said(role, "\n".join(texts), "".join(thinking), tuple(calls))]


def _texts(content: str | list[TextWire] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if other := next((block.type for block in content if block.type != "text" or block.text is None), None):
        raise Refused(Problem.INVALID, f"{place}: a block of type {other!r} is not supported, only text", field=place)
    return "\n".join(block.text or "" for block in content)
