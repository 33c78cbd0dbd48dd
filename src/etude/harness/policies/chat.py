"""A policy for any endpoint that speaks the OpenAI chat protocol with tools.

Requests that fail with status 429, 5xx or a broken connection are retried; if all attempts fail, PolicyError is raised.
A full context raises ContextFull. A tool call that does not parse raises nothing; it is passed on to the loop. With
`on_piece` the answer is streamed, which does not change the resulting turn. Later requests contain the model's earlier
thinking, because in training it stays in the context too. If an endpoint rejects streaming, the field with the
thinking, or the name `max_tokens`, the request is repeated without streaming, without the field, or with
`max_completion_tokens`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from etude.harness.policies.chat_stream import Assembly, OnPiece, Piece, StreamBroken, events
from etude.harness.policy import ContextFull, PolicyError
from etude.harness.schema import ToolSchema
from etude.trace.conversation.messages import Conversation, ToolCall, Turn
from etude.trace.conversation.openai_messages import THINKING, openai_messages

_CHARACTERS_PER_TOKEN = 4
_REFUSES = (400, 404, 405, 415, 422, 501)
_FULL = (
    "context_length", "context length", "maximum context", "context size", "context window", "prompt is too long",
    "maximum number of tokens",
)  # fmt: skip
_LONGEST_PAUSE = 60.0


class _AskOtherwise(Exception):
    """The endpoint rejected a request field: ask again without it, or with its newer name."""


class _AskAgain(Exception):
    """The endpoint failed temporarily (status 429 or 5xx), so the request is to be sent again. `seconds` is how long
    its answer asks to wait, at most _LONGEST_PAUSE; 0 if it does not ask."""

    def __init__(self, problem: str, seconds: float = 0.0) -> None:
        super().__init__(problem)
        self.seconds = min(seconds, _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    """Base URL, without /chat/completions."""
    model: str
    api_key: str = ""
    temperature: float = 1.0
    seed: int | None = None
    seconds: float = 300.0
    """Timeout in seconds of one answer, or of each piece of a streamed answer."""
    attempts: int = 3
    pause_seconds: float = 1.0
    """Seconds to wait before the second attempt. The pause doubles with each further attempt."""


class ChatPolicy:
    """A policy over one endpoint, for any number of conversations. Call `aclose` to close its connections."""

    def __init__(self, endpoint: Endpoint, schemas: Sequence[ToolSchema], on_piece: OnPiece | None = None) -> None:
        self.on_piece = on_piece
        self._can_stream = True
        self._bound = "max_tokens"
        """Name of the request field that limits the answer's tokens; newer endpoints require another one."""
        self._thinking = THINKING
        """Name of the message field with the model's thinking; empty if the endpoint rejects it."""
        self.name = endpoint.model
        self._endpoint = endpoint
        self._tools = [schema.openai() for schema in schemas]
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._client = httpx.AsyncClient(
            base_url=endpoint.url.rstrip("/") + "/", headers=headers, timeout=endpoint.seconds
        )
        self._counted: dict[str, tuple[int, int]] = {}
        """By conversation id: how many messages the endpoint has counted so far, and their tokens."""

    async def act(self, conversation: Conversation, *, max_tokens: int) -> Turn:
        answer = await self._ask(conversation, max_tokens)
        try:
            self._notice(answer["choices"][0]["message"])
            turn, total = _turn(answer, len(conversation.messages), self.count)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise PolicyError(f"{self._endpoint.url}: the answer is not a chat completion ({error!r})") from error
        if total:
            self._counted[conversation.id] = (len(conversation.messages) + 1, total)
        return turn

    def _body(self, conversation: Conversation, max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": openai_messages(conversation, self._thinking),
            self._bound: max_tokens,
            "temperature": self._endpoint.temperature,
        }
        if self._tools:
            body["tools"] = self._tools
        if self._endpoint.seed is not None:
            body["seed"] = self._endpoint.seed
        return body

    async def _ask(self, conversation: Conversation, max_tokens: int) -> Any:
        problem = ""
        attempt, wanted = 0, 0.0
        while attempt < self._endpoint.attempts:
            if attempt:
                await asyncio.sleep(max(wanted, self._endpoint.pause_seconds * 2 ** (attempt - 1)))
                wanted = 0.0
            body = self._body(conversation, max_tokens)
            try:
                return await (self._streamed(body, self.on_piece) if self._streams else self._at_once(body))
            except _AskOtherwise:
                continue
            except (httpx.HTTPError, StreamBroken) as error:
                problem = f"{type(error).__name__} {error}".strip()
            except _AskAgain as error:
                problem, wanted = str(error), error.seconds
            if self.on_piece is not None:
                self.on_piece(Piece("again"))
            attempt += 1
        raise PolicyError(f"{self._endpoint.url}: no answer in {self._endpoint.attempts} attempts, last: {problem}")

    @property
    def _streams(self) -> bool:
        return self.on_piece is not None and self._can_stream

    async def _at_once(self, body: dict[str, Any]) -> Any:
        response = await self._client.post("chat/completions", json=body)
        self._check(response, body)
        return self._parsed(response)

    async def _streamed(self, body: dict[str, Any], tell: OnPiece | None) -> Any:
        assert tell is not None
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._client.stream("POST", "chat/completions", json=asked) as response:
            if response.status_code != 200:
                await response.aread()
                self._check(response, asked)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                await response.aread()
                return self._parsed(response)
            assembly = Assembly(tell)
            async for event in events(response.aiter_lines()):
                if "error" in event:
                    _said_no(self._endpoint.url, 200, json.dumps(event["error"])[:500])
                try:
                    assembly.take(event)
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    raise PolicyError(
                        f"{self._endpoint.url}: an event is not part of a completion ({error!r})"
                    ) from error
            if assembly.finish is None:
                raise StreamBroken("the stream ended in the middle of the answer")
            return assembly.whole()

    def _check(self, response: httpx.Response, asked: dict[str, Any]) -> None:
        status = response.status_code
        if status in _REFUSES and not _is_full(response.text) and self._can_do_without(asked, response.text):
            raise _AskOtherwise
        if status == 429 or status >= 500:
            raise _AskAgain(f"status {status}", _seconds(response.headers.get("retry-after", "")))
        if status != 200:
            _said_no(self._endpoint.url, status, response.text[:500])

    def _can_do_without(self, asked: dict[str, Any], said: str) -> bool:
        """Omit or rename from now on the request field that the error message `said` names. Return False if it names no
        field that can be omitted or renamed."""
        if self._bound == "max_tokens" and "max_completion_tokens" in said:
            self._bound = "max_completion_tokens"
        elif self._thinking in said and any(self._thinking in message for message in asked["messages"]):
            self._thinking = ""
        elif "stream" in asked and "stream" in said:
            self._can_stream = False
        else:
            return False
        return True

    def _notice(self, message: Any) -> None:
        name = next((name for name in (THINKING, "reasoning") if message.get(name)), "")
        self._thinking = self._thinking and (name or self._thinking)

    def _parsed(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PolicyError(f"{self._endpoint.url}: the answer is not JSON") from error

    def tokens(self, conversation: Conversation) -> int:
        """Return the number of tokens that the endpoint last reported, plus an estimate for later messages."""
        known, tokens = self._counted.get(conversation.id, (0, 0))
        return tokens + sum(self.count(message.text) for message in conversation.messages[known:])

    def count(self, text: str) -> int:
        return -(-len(text) // _CHARACTERS_PER_TOKEN)

    async def aclose(self) -> None:
        await self._client.aclose()


def _is_full(text: str) -> bool:
    return any(words in text for words in _FULL)


def _seconds(text: str) -> float:
    """Parse a Retry-After header into seconds; 0 if the header contains a date instead."""
    return float(text) if text.isdecimal() else 0.0


def _said_no(url: str, status: int, text: str) -> None:
    """Raise ContextFull if an endpoint's error message reports a full context, else PolicyError."""
    if _is_full(text):
        raise ContextFull(text)
    raise PolicyError(f"{url}: status {status}: {text}")


def _turn(answer: Any, place: int, count: Any) -> tuple[Turn, int]:
    """Return a completion's turn, and the tokens of prompt and answer together (0 if not reported). Calls without an id
    get one made from `place`, the number of earlier messages."""
    choice = answer["choices"][0]
    message = choice["message"]
    usage = answer.get("usage") or {}
    text = _valid(message.get("content") or "")
    thinking = _valid(message.get("reasoning_content") or message.get("reasoning") or "")
    calls = tuple(_call(call, f"{place}.{n}") for n, call in enumerate(message.get("tool_calls") or []))
    thinking_tokens, call_tokens, message_tokens = (
        count(thinking),
        sum(count(call.raw) for call in calls),
        count(text),
    )
    sampled = int(usage.get("completion_tokens") or thinking_tokens + call_tokens + message_tokens)
    turn = Turn(
        text=text,
        thinking=thinking,
        calls=calls,
        sampled_tokens=sampled,
        thinking_tokens=thinking_tokens,
        call_tokens=call_tokens,
        message_tokens=message_tokens,
        cut_off=choice.get("finish_reason") == "length",
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
    )
    return turn, int(usage.get("prompt_tokens") or 0) + sampled if usage else 0


def _call(call: Any, label: str) -> ToolCall:
    function = call["function"]
    raw = _valid(function.get("arguments") or "")
    identity = str(call.get("id") or label)
    try:
        arguments = json.loads(raw) if raw else {}
    except json.JSONDecodeError as error:
        return ToolCall(identity, str(function["name"]), None, raw, f"arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(identity, str(function["name"]), None, raw, "arguments are not a JSON object")
    return ToolCall(identity, str(function["name"]), arguments, raw)


def _valid(text: str) -> str:
    """Replace unpaired surrogates, which JSON can contain but UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
