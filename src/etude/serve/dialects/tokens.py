"""Étude's own protocol: token ids in, token ids out, with log-probs and the weights version of every token."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from etude.serve.answer import Answer, CallMade, Event, Tokens
from etude.serve.dialects import openai
from etude.serve.dialects.exchange import Exchange, Name, TopP, Wire, read_as, sse
from etude.serve.gateway import Served
from etude.serve.question import Question, Wanted
from etude.serve.refusal import Refused

TokenId = Annotated[int, Field(ge=0)]


class GenerateWire(Wire):
    model: Name | None = None
    prompt_token_ids: Annotated[list[TokenId], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: TopP | None = None
    seed: int | None = None
    stop_token_ids: list[TokenId] | None = None
    """Ids that end the answer; by default those that end a turn of the chat format."""
    stream: bool | None = None


class TokensDialect:
    path: ClassVar[str] = "/etude/v1/generate"
    request: ClassVar[type[Wire]] = GenerateWire

    def __init__(self, served: Served) -> None:
        self._served = served

    def read(self, body: bytes) -> Exchange:
        asked = read_as(GenerateWire, body)
        self._served.require_known(asked.prompt_token_ids, "prompt_token_ids")
        self._served.require_known(asked.stop_token_ids or (), "stop_token_ids")
        return TokensExchange(asked, asked.model or self._served.names[0])

    def refusal(self, refused: Refused) -> tuple[int, dict[str, Any]]:
        return openai.refusal(refused)


class TokensExchange:
    warnings: tuple[str, ...] = ()

    def __init__(self, asked: GenerateWire, model: str) -> None:
        self.question = Question(
            prompt=tuple(asked.prompt_token_ids),
            wanted=Wanted(
                max_tokens=asked.max_tokens,
                temperature=1.0 if asked.temperature is None else asked.temperature,
                top_p=1.0 if asked.top_p is None else asked.top_p,
                seed=asked.seed,
                stop_ids=None if asked.stop_token_ids is None else tuple(asked.stop_token_ids),
            ),
            model=model,
        )
        self.streamed = bool(asked.stream)

    def whole(self, answer: Answer) -> dict[str, Any]:
        return _part(Tokens(answer.tokens.tolist(), answer.logprobs.tolist())) | _end(answer)

    def opening(self, prompt: int) -> bytes:
        return b""

    def event(self, event: Event) -> bytes:
        if isinstance(event, Answer):
            return sse(_part(event.rest) | _end(event)) + sse("[DONE]")
        return b"" if isinstance(event, CallMade) else sse(_part(event.tokens))

    def failure(self, refused: Refused) -> bytes:
        return sse(openai.refusal(refused)[1])


def _part(tokens: Tokens) -> dict[str, Any]:
    return {"token_ids": tokens.ids, "logprobs": tokens.logprobs}


def _end(answer: Answer) -> dict[str, Any]:
    return {
        "versions": answer.versions.tolist(),
        "finish_reason": str(answer.finish),
        "usage": openai.usage_of(answer),
    }
