"""Reads streamed answers of an OpenAI-compatible endpoint: passes each piece on at once, and assembles the answer.

Invariant: `Assembly.whole` returns the completion that the endpoint would have sent without streaming.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a turn that is being streamed, for display. All other code uses only the complete turn."""

    kind: Literal["thinking", "text", "call", "again"]
    """What the piece is part of: the model's thinking, its text or, for "call", the arguments of a tool call. A piece
    "again" has no text. It says that the turn is sampled again, so its pieces so far must be discarded."""
    text: str = ""
    name: str = ""
    place: int = 0
    """For a tool call: its index within the turn."""


OnPiece = Callable[[Piece], None]


class StreamBroken(Exception):
    """The stream ended before the answer was complete, or contained data that is not a JSON object."""


async def events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects of a server-sent event stream up to its end mark. Raises StreamBroken if an event is not a
    JSON object."""
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except json.JSONDecodeError as error:
            raise StreamBroken(f"an event is not JSON: {data[:80]!r}") from error
        if not isinstance(event, dict):
            raise StreamBroken(f"an event is not a JSON object: {data[:80]!r}")
        yield event


class Assembly:
    """Assembles stream events into one completion, and passes each piece of the turn to `tell`.

    `take` raises TypeError, KeyError, AttributeError or ValueError for an event that is not part of a chat completion.
    """

    def __init__(self, tell: OnPiece) -> None:
        self._tell = tell
        self._said: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Any = None
        self.finish: str | None = None
        """The endpoint's reason why the answer ended (`finish_reason`); None until it has ended."""

    def take(self, event: dict[str, Any]) -> None:
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or []:
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            for key, kind in _KINDS:
                if text := delta.get(key):
                    self._said.setdefault(key, []).append(text)
                    # Some endpoints send the same thinking under both names.
                    if key != "reasoning" or not delta.get("reasoning_content"):
                        self._tell(Piece(kind, text))
            for call in delta.get("tool_calls") or []:
                self._call(call)
            self.finish = choice.get("finish_reason") or self.finish

    def _call(self, delta: dict[str, Any]) -> None:
        # Some endpoints omit the index of a call that they send in one piece.
        index = delta.get("index")
        index = len(self._calls) if index is None else int(index)
        call = self._calls.setdefault(index, {"id": None, "function": {"name": "", "arguments": ""}})
        call["id"] = delta.get("id") or call["id"]
        function = delta.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        piece = function.get("arguments") or ""
        call["function"]["arguments"] += piece
        self._tell(Piece("call", piece, call["function"]["name"], index))

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {key: "".join(parts) for key, parts in self._said.items()}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return {"choices": [{"message": message, "finish_reason": self.finish}], "usage": self._usage}


_KINDS: tuple[tuple[str, Literal["thinking", "text"]], ...] = (
    ("reasoning_content", "thinking"),
    ("reasoning", "thinking"),
    ("content", "text"),
)
