"""What OpenAI's protocols share: errors, functions, content and the log-probs of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import Field

from etude.serve.answer import Answer, Tokens
from etude.serve.dialects.exchange import Name, Wire
from etude.serve.question import Function
from etude.serve.refusal import Problem, Refused

_STATUS = {
    Problem.INVALID: (400, "invalid_request_error", "invalid_request"),
    Problem.CONTEXT: (400, "invalid_request_error", "context_length_exceeded"),
    Problem.KEY: (401, "invalid_request_error", "invalid_api_key"),
    Problem.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found"),
    Problem.UNKNOWN_PLACE: (404, "invalid_request_error", "not_found"),
    Problem.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    Problem.TOO_SLOW: (408, "invalid_request_error", "request_timeout"),
    Problem.KEY_BUSY: (429, "rate_limit_error", "too_many_requests"),
    Problem.BUSY: (429, "rate_limit_error", "queue_full"),
    Problem.ENDING: (503, "server_error", "shutting_down"),
    Problem.ENGINE: (503, "server_error", "engine_lost"),
}


def refusal(refused: Refused) -> tuple[int, dict[str, Any]]:
    status, kind, code = _STATUS[refused.problem]
    error = {"message": refused.message, "type": kind, "param": refused.field or None, "code": code}
    return status, {"error": error}


class FunctionWire(Wire):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def function(self) -> Function:
        return {
            "name": self.name,
            "description": self.description or "",
            "parameters": self.parameters or {"type": "object", "properties": {}},
        }


class ToolWire(Wire):
    type: Literal["function"]
    function: FunctionWire


class PartWire(Wire):
    type: Name
    text: str | None = None


Content = str | list[PartWire] | None
Stop = str | list[Name] | None
PositiveInt = Field(default=None, ge=1)


def text_of(content: Content, kinds: Sequence[str], place: str) -> str:
    """Return the text of a message's content. Raises Refused for parts that are not text."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in kinds or part.text is None:
            raise Refused(
                Problem.INVALID, f"{place}: a part of type {part.type!r} is not supported, only text", field=place
            )
    return "\n".join(part.text or "" for part in content)


def stop_texts(stop: Stop) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def usage_of(answer: Answer) -> dict[str, Any]:
    prompt, sampled = len(answer.prompt), len(answer.tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
    }


def token_ids(answer: Answer) -> dict[str, Any]:
    """Return an answer token for token, for clients that ask with `return_token_ids`."""
    return {
        "prompt_token_ids": answer.prompt.tolist(),
        "token_ids": answer.tokens.tolist(),
        "logprobs": [round(value, 6) for value in answer.logprobs.tolist()],
        "versions": answer.versions.tolist(),
    }


def logprobs_of(tokens: Tokens, decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
    entries = []
    for token, logprob in zip(*tokens, strict=True):
        text = decode([token])
        entries.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return entries
