"""OpenAI's Responses. Responses are not stored, so `previous_response_id` is refused; tools other than functions are
left out, with a header that says so, because some clients always send them.

Thinking is a reasoning item. Clients that send it back only as `encrypted_content` find it there too.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from etude.serve.answer import Answer, CallMade, Delta, Event, Finish
from etude.serve.dialects import openai
from etude.serve.dialects.exchange import Exchange, Name, TopP, Wire, read_as, require, sse
from etude.serve.dialects.openai import Content, PartWire
from etude.serve.gateway import Served
from etude.serve.question import Function, Question, Said, SaidCall, Wanted
from etude.serve.refusal import Problem, Refused
from etude.trace.conversation.messages import Role

_TEXTS = ("input_text", "output_text", "text", "refusal")
_SEALED = "etude."
"""Begins the `encrypted_content` of our reasoning items."""


class ItemWire(Wire):
    """An item of the input. Which fields it has depends on its type."""

    type: Name = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content = None
    summary: list[PartWire] | None = None
    encrypted_content: str | None = None


class ToolWire(Wire):
    type: Name
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ResponsesRequest(Wire):
    model: Name
    input: str | Annotated[list[ItemWire], Field(min_length=1)]
    instructions: str | None = None
    tools: list[ToolWire] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    stream: bool | None = None
    return_token_ids: bool | None = None
    previous_response_id: str | None = None
    top_p: TopP | None = None
    top_logprobs: int | None = None
    background: bool | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


class ResponsesDialect:
    path: ClassVar[str] = "/v1/responses"
    request: ClassVar[type[Wire]] = ResponsesRequest

    def __init__(self, served: Served) -> None:
        self._served = served

    def read(self, body: bytes) -> Exchange:
        return ResponsesExchange(read_as(ResponsesRequest, body))

    def refusal(self, refused: Refused) -> tuple[int, dict[str, Any]]:
        return openai.refusal(refused)


class ResponsesExchange:
    def __init__(self, asked: ResponsesRequest) -> None:
        if asked.previous_response_id is not None:
            raise Refused(
                Problem.UNKNOWN_PLACE,
                f"responses are not stored here: send the whole input in place of {asked.previous_response_id}",
                field="previous_response_id",
            )
        require(
            {
                "top_logprobs": (asked.top_logprobs, (0,)),
                "background": (asked.background, (False,)),
                "text.format": ((asked.text or {}).get("format"), ({"type": "text"},)),
                "conversation": (asked.conversation, ()),
                "prompt": (asked.prompt, ()),
                "truncation": (asked.truncation, ("disabled",)),
                "tool_choice": (asked.tool_choice, ("auto", "none")),
            }
        )
        offered = [] if asked.tool_choice == "none" else asked.tools or []
        left_out = [tool.type for tool in offered if tool.type != "function"]
        self.warnings: tuple[str, ...] = (f"tools left out: {', '.join(left_out)}",) if left_out else ()
        self.question = Question(
            said=tuple(_said(asked)),
            functions=tuple(_function(tool, n) for n, tool in enumerate(offered) if tool.type == "function"),
            wanted=Wanted(
                max_tokens=asked.max_output_tokens,
                temperature=1.0 if asked.temperature is None else asked.temperature,
                top_p=1.0 if asked.top_p is None else asked.top_p,
            ),
            model=asked.model,
        )
        self.streamed = bool(asked.stream)
        self._asked = asked
        self._label, self._created = secrets.token_hex(12), int(time.time())
        self._events = 0
        self._done: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        """The item that is being written."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        items = [self._item("reasoning", answer.thinking, 0)] if answer.thinking else []
        if answer.text or not answer.calls:
            items.append(self._item("message", answer.text, len(items)))
        items += [_call(call) for call in answer.calls]
        return self._response(answer, items)

    def opening(self, prompt: int) -> bytes:
        response = self._response(None, [])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def event(self, event: Event) -> bytes:
        if isinstance(event, Delta):
            kind = "reasoning" if event.kind == "thinking" else "message"
            opened = b"" if self._open is not None and self._open["type"] == kind else self._close() + self._begin(kind)
            return opened + self._more(event.text)
        if isinstance(event, CallMade):
            item, place = _call(event.call), len(self._done) + (self._open is not None)
            closed = self._close()
            self._done.append(item)
            of = {"item_id": item["id"], "output_index": place}
            added = {**item, "arguments": "", "status": "in_progress"}
            arguments = item["arguments"]
            return b"".join(
                (
                    closed,
                    self._event("response.output_item.added", output_index=place, item=added),
                    self._event("response.function_call_arguments.delta", **of, delta=arguments),
                    self._event("response.function_call_arguments.done", **of, name=item["name"], arguments=arguments),
                    self._event("response.output_item.done", output_index=place, item=item),
                )
            )
        last = self._close()
        if not self._done:
            last += self._begin("message") + self._close()
        response = self._response(event, self._done)
        return last + self._event(f"response.{response['status']}", response=response)

    def failure(self, refused: Refused) -> bytes:
        error = openai.refusal(refused)[1]["error"]
        failed = self._response(None, self._done) | {
            "status": "failed",
            "error": {"code": error["code"], "message": error["message"]},
        }
        return self._event("response.failed", response=failed)

    def _begin(self, kind: str) -> bytes:
        place = len(self._done)
        self._open = item = self._item(kind, "", place)
        self._text = ""
        added = self._event("response.output_item.added", output_index=place, item=item | {"content": []})
        part = item["content"][0]
        return added + self._event("response.content_part.added", **self._place(), part=part)

    def _more(self, text: str) -> bytes:
        self._text += text
        return self._event(f"response.{self._part_kind()}.delta", **self._place(), delta=text, **self._no_logprobs())

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        place = self._place()
        item = self._item(self._open["type"], self._text, len(self._done), self._open["id"])
        told = self._event(f"response.{self._part_kind()}.done", **place, text=self._text, **self._no_logprobs())
        told += self._event("response.content_part.done", **place, part=item["content"][0])
        told += self._event("response.output_item.done", output_index=place["output_index"], item=item)
        self._done.append(item)
        self._open = None
        return told

    def _part_kind(self) -> str:
        assert self._open is not None
        return "reasoning_text" if self._open["type"] == "reasoning" else "output_text"

    def _no_logprobs(self) -> dict[str, Any]:
        return {"logprobs": []} if self._part_kind() == "output_text" else {}

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._done), "content_index": 0}

    def _item(self, kind: str, text: str, place: int, name: str = "") -> dict[str, Any]:
        if kind == "reasoning":
            return {
                "id": name or f"rs_{self._label}_{place}",
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": text}],
                "encrypted_content": _SEALED + base64.b64encode(text.encode()).decode(),
                "status": "completed",
            }
        return {
            "id": name or f"msg_{self._label}_{place}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}],
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        return sse({"type": kind, "sequence_number": number, **fields}, kind)

    def _response(self, answer: Answer | None, items: list[dict[str, Any]]) -> dict[str, Any]:
        cut = answer is not None and answer.finish is Finish.LENGTH
        asked = self._asked
        response: dict[str, Any] = {
            "id": f"resp_{self._label}",
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if answer is None else "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": {},
            "model": asked.model,
            "output": items,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": self.question.wanted.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": [{"type": "function", "strict": False, **dict(function)} for function in self.question.functions],
            "top_p": self.question.wanted.top_p,
            "truncation": "disabled",
            "usage": None if answer is None else _usage(answer),
        }
        return response | ({"etude": openai.token_ids(answer)} if answer and asked.return_token_ids else {})


def _usage(answer: Answer) -> dict[str, Any]:
    prompt, sampled = len(answer.prompt), len(answer.tokens)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
        "total_tokens": prompt + sampled,
    }


def _call(call: SaidCall) -> dict[str, Any]:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _function(tool: ToolWire, place: int) -> Function:
    if not tool.name:
        raise Refused(Problem.INVALID, f"tools.{place}: the function has no name", field=f"tools.{place}.name")
    schema = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description or "", "parameters": schema}


def _said(asked: ResponsesRequest) -> list[Said]:
    said = [Said(Role.SYSTEM, asked.instructions)] if asked.instructions else []
    if isinstance(asked.input, str):
        return [*said, Said(Role.USER, asked.input)]
    return [*said, *(_of_item(item, f"input.{place}") for place, item in enumerate(asked.input))]


def _of_item(item: ItemWire, place: str) -> Said:
    if item.type == "message" and item.role is not None:
        role = Role.SYSTEM if item.role == "developer" else Role(item.role)
        return Said(role, openai.text_of(item.content, _TEXTS, f"{place}.content"))
    if item.type == "function_call" and item.call_id and item.name:
        return Said(Role.ASSISTANT, calls=(SaidCall(item.call_id, item.name, item.arguments or ""),))
    if item.type == "function_call_output" and item.call_id:
        return Said(Role.TOOL, openai.text_of(item.output, _TEXTS, f"{place}.output"), answers=item.call_id)
    if item.type == "reasoning":
        return Said(Role.ASSISTANT, thinking=_thinking(item, place))
    raise Refused(
        Problem.INVALID, f"{place}: an item of type {item.type!r} is not supported here, or lacks a field", field=place
    )


def _thinking(item: ItemWire, place: str) -> str:
    if item.content:
        return openai.text_of(item.content, ("reasoning_text",), f"{place}.content")
    sealed = item.encrypted_content or ""
    if sealed.startswith(_SEALED):
        try:
            return base64.b64decode(sealed.removeprefix(_SEALED), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise Refused(Problem.INVALID, f"{place}.encrypted_content is damaged", field=place) from error
    return "\n".join(part.text or "" for part in item.summary or ())
