"""OpenAI's chat completions. Thinking is the field `reasoning_content`, in both directions."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from etude.serve.answer import Answer, CallMade, Delta, Event, Finish, Tokens
from etude.serve.dialects import openai
from etude.serve.dialects.exchange import Exchange, Name, TopP, Wire, read_as, require, sse
from etude.serve.dialects.openai import Content, Stop, ToolWire
from etude.serve.gateway import Served
from etude.serve.question import Question, Said, SaidCall, Wanted
from etude.serve.refusal import Refused
from etude.trace.conversation.messages import Role

_FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.CALLS: "tool_calls"}


class CalledFunctionWire(Wire):
    name: Name
    arguments: str = ""


class CallWire(Wire):
    id: Name
    type: Literal["function"] = "function"
    function: CalledFunctionWire


class MessageWire(Wire):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    reasoning_content: str | None = None
    tool_calls: list[CallWire] | None = None
    tool_call_id: str | None = None


class StreamOptionsWire(Wire):
    include_usage: bool | None = None


class ChatRequest(Wire):
    model: Name
    messages: Annotated[list[MessageWire], Field(min_length=1)]
    tools: list[ToolWire] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    seed: int | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptionsWire | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    """Étude's own: the answer's `etude` has the token ids of prompt and answer, log-probs and versions."""
    n: int | None = None
    top_p: TopP | None = None
    top_k: int | None = None
    min_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    functions: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None


class ChatDialect:
    path: ClassVar[str] = "/v1/chat/completions"
    request: ClassVar[type[Wire]] = ChatRequest

    def __init__(self, served: Served) -> None:
        self._served = served

    def read(self, body: bytes) -> Exchange:
        return ChatExchange(read_as(ChatRequest, body), self._served)

    def refusal(self, refused: Refused) -> tuple[int, dict[str, Any]]:
        return openai.refusal(refused)


class ChatExchange:
    warnings: tuple[str, ...] = ()

    def __init__(self, asked: ChatRequest, served: Served) -> None:
        require(
            {
                "n": (asked.n, (1,)),
                "top_k": (asked.top_k, (-1, 0)),
                "min_p": (asked.min_p, (0,)),
                "top_logprobs": (asked.top_logprobs, (0,)),
                "presence_penalty": (asked.presence_penalty, (0,)),
                "frequency_penalty": (asked.frequency_penalty, (0,)),
                "repetition_penalty": (asked.repetition_penalty, (1,)),
                "logit_bias": (asked.logit_bias, ({},)),
                "functions": (asked.functions, ([],)),
                "response_format": (asked.response_format, ({"type": "text"},)),
                "modalities": (asked.modalities, (["text"],)),
                "tool_choice": (asked.tool_choice, ("auto", "none")),
            }
        )
        offered = [] if asked.tool_choice == "none" else asked.tools or []
        self.question = Question(
            said=tuple(_said(message, place) for place, message in enumerate(asked.messages)),
            functions=tuple(tool.function.function() for tool in offered),
            wanted=Wanted(
                max_tokens=asked.max_completion_tokens or asked.max_tokens,
                temperature=1.0 if asked.temperature is None else asked.temperature,
                top_p=1.0 if asked.top_p is None else asked.top_p,
                seed=asked.seed,
                stop=openai.stop_texts(asked.stop),
            ),
            model=asked.model,
        )
        self.streamed = bool(asked.stream)
        self._asked, self._decode = asked, served.tokenizer.decode
        self._base = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": asked.model}
        self._calls = 0

    def whole(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        every = Tokens(answer.tokens.tolist(), answer.logprobs.tolist())
        choice = {"index": 0, "message": message, "finish_reason": _FINISH[answer.finish], **self._logprobs(every)}
        whole = {**self._base, "object": "chat.completion", "choices": [choice], "usage": openai.usage_of(answer)}
        return whole | self._token_ids(answer)

    def opening(self, prompt: int) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def event(self, event: Event) -> bytes:
        if isinstance(event, Delta):
            name = "reasoning_content" if event.kind == "thinking" else "content"
            return self._chunk({name: event.text}, event.tokens)
        if isinstance(event, CallMade):
            self._calls += 1
            return self._chunk({"tool_calls": [{"index": self._calls - 1, **_call(event.call)}]}, event.tokens)
        last = self._chunk({}, event.rest, _FINISH[event.finish], self._token_ids(event))
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            chunk = {**self._base, "object": "chat.completion.chunk", "choices": []}
            last += sse(chunk | {"usage": openai.usage_of(event)})
        return last + sse("[DONE]")

    def failure(self, refused: Refused) -> bytes:
        return sse(openai.refusal(refused)[1])

    def _chunk(
        self, delta: dict[str, Any], tokens: Tokens | None = None, finish: str | None = None, more: Any = ()
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, **(self._logprobs(tokens) if tokens else {})}
        return sse({**self._base, "object": "chat.completion.chunk", "choices": [choice]} | dict(more))

    def _logprobs(self, tokens: Tokens) -> dict[str, Any]:
        return {"logprobs": {"content": openai.logprobs_of(tokens, self._decode)}} if self._asked.logprobs else {}

    def _token_ids(self, answer: Answer) -> dict[str, Any]:
        return {"etude": openai.token_ids(answer)} if self._asked.return_token_ids else {}


def _said(message: MessageWire, place: int) -> Said:
    role = Role.SYSTEM if message.role == "developer" else Role(message.role)
    calls = tuple(SaidCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
    return Said(
        role,
        openai.text_of(message.content, ("text", "refusal"), f"messages.{place}.content"),
        thinking=message.reasoning_content or "",
        calls=calls if role is Role.ASSISTANT else (),
        answers=message.tool_call_id or "",
    )


def _call(call: SaidCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
