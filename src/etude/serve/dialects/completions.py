"""OpenAI's completions: a text or token ids go on, without a chat format. A text has no special tokens; token ids may
name any."""

from __future__ import annotations

import secrets
import time
from itertools import accumulate
from typing import Annotated, Any, ClassVar

from pydantic import Field

from etude.serve.answer import Answer, CallMade, Event, Finish, Tokens
from etude.serve.dialects import openai
from etude.serve.dialects.chat import StreamOptionsWire
from etude.serve.dialects.exchange import Exchange, Name, TopP, Wire, read_as, require, sse
from etude.serve.dialects.openai import Stop
from etude.serve.gateway import Served
from etude.serve.question import Question, Wanted
from etude.serve.refusal import Problem, Refused

_FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.CALLS: "stop"}
_USUAL_TOKENS = 16
"""Tokens of a completion whose request does not say how many; the protocol's default."""


class CompletionRequest(Wire):
    model: Name
    prompt: str | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | list[str]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    seed: int | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptionsWire | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = None
    return_token_ids: bool | None = None
    n: int | None = None
    best_of: int | None = None
    top_p: TopP | None = None
    suffix: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None


class CompletionDialect:
    path: ClassVar[str] = "/v1/completions"
    request: ClassVar[type[Wire]] = CompletionRequest

    def __init__(self, served: Served) -> None:
        self._served = served

    def read(self, body: bytes) -> Exchange:
        return CompletionExchange(read_as(CompletionRequest, body), self._served)

    def refusal(self, refused: Refused) -> tuple[int, dict[str, Any]]:
        return openai.refusal(refused)


class CompletionExchange:
    warnings: tuple[str, ...] = ()

    def __init__(self, asked: CompletionRequest, served: Served) -> None:
        require(
            {
                "n": (asked.n, (1,)),
                "best_of": (asked.best_of, (1,)),
                "echo": (asked.echo, (False,)),
                "logprobs": (asked.logprobs, (0, 1)),
                "suffix": (asked.suffix, ("",)),
                "presence_penalty": (asked.presence_penalty, (0,)),
                "frequency_penalty": (asked.frequency_penalty, (0,)),
                "logit_bias": (asked.logit_bias, ({},)),
            }
        )
        self.question = Question(
            prompt=_prompt(asked.prompt, served),
            wanted=Wanted(
                max_tokens=asked.max_tokens or _USUAL_TOKENS,
                temperature=1.0 if asked.temperature is None else asked.temperature,
                top_p=1.0 if asked.top_p is None else asked.top_p,
                seed=asked.seed,
                stop=openai.stop_texts(asked.stop),
            ),
            model=asked.model,
        )
        self.streamed = bool(asked.stream)
        self._asked, self._decode = asked, served.tokenizer.decode
        self._offset = 0
        self._base = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": asked.model,
        }

    def whole(self, answer: Answer) -> dict[str, Any]:
        tokens = Tokens(answer.tokens.tolist(), answer.logprobs.tolist())
        choice = self._choice(answer.text, tokens, _FINISH[answer.finish])
        return {**self._base, "choices": [choice], "usage": openai.usage_of(answer)} | self._token_ids(answer)

    def opening(self, prompt: int) -> bytes:
        return b""

    def event(self, event: Event) -> bytes:
        if isinstance(event, CallMade):
            return b""  # a completion has no calls
        if not isinstance(event, Answer):
            return sse({**self._base, "choices": [self._choice(event.text, event.tokens, None)]})
        last = {**self._base, "choices": [self._choice("", event.rest, _FINISH[event.finish])]}
        told = sse(last | self._token_ids(event))
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            told += sse({**self._base, "choices": [], "usage": openai.usage_of(event)})
        return told + sse("[DONE]")

    def failure(self, refused: Refused) -> bytes:
        return sse(openai.refusal(refused)[1])

    def _choice(self, text: str, tokens: Tokens, finish: str | None) -> dict[str, Any]:
        logprobs = None
        if self._asked.logprobs is not None:
            texts = [self._decode([token]) for token in tokens.ids]
            offsets = [*accumulate(map(len, texts), initial=self._offset)]
            self._offset = offsets.pop()
            logprobs = {
                "tokens": texts,
                "token_logprobs": tokens.logprobs,
                "top_logprobs": None,
                "text_offset": offsets,
            }
        return {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}

    def _token_ids(self, answer: Answer) -> dict[str, Any]:
        return {"etude": openai.token_ids(answer)} if self._asked.return_token_ids else {}


def _prompt(prompt: str | list[int] | list[str], served: Served) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        found: str | tuple[int, ...] = prompt
    elif len(prompt) == 1 and isinstance(prompt[0], str):
        found = prompt[0]
    else:
        ids = tuple(token for token in prompt if isinstance(token, int))
        if len(ids) != len(prompt):
            raise Refused(Problem.INVALID, "prompt: several prompts in one request are not supported", field="prompt")
        served.require_known(ids, "prompt")
        found = ids
    if not found:
        raise Refused(Problem.INVALID, "prompt: it is empty", field="prompt")
    return found
