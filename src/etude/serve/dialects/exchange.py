"""What every protocol of clients provides: it reads a request, and writes the answer whole or as a stream of events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etude.serve.answer import Answer, Event
from etude.serve.question import Question
from etude.serve.refusal import Problem, Refused

_SHOWN = 200


class Wire(BaseModel):
    """Base class of the models of requests. Fields that are not named here are ignored, since clients send many."""

    model_config = ConfigDict(strict=True, extra="ignore")


Name = Annotated[str, Field(min_length=1, max_length=256)]
TopP = Annotated[float, Field(gt=0, le=1)]
W = TypeVar("W", bound=Wire)


class Exchange(Protocol):
    """One request and its answer."""

    question: Question
    streamed: bool
    warnings: tuple[str, ...]
    """What of the request was left out; sent as headers."""

    def whole(self, answer: Answer) -> dict[str, Any]: ...

    def opening(self, prompt: int) -> bytes:
        """Return the events before the first one of the answer; `prompt` is the number of its tokens."""
        ...

    def event(self, event: Event) -> bytes:
        """Return the events that tell clients of this one. After an Answer the stream ends."""
        ...

    def failure(self, refused: Refused) -> bytes:
        """Return the event that ends a stream which cannot go on."""
        ...


class Dialect(Protocol):
    path: ClassVar[str]
    request: ClassVar[type[Wire]]

    def read(self, body: bytes) -> Exchange:
        """Raises Refused for a request that makes no sense, or asks for what is not supported."""
        ...

    def refusal(self, refused: Refused) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a refusal."""
        ...


def read_as(model: type[W], body: bytes) -> W:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"] if not str(part).endswith(("]", "Wire")))
        what = f"{place}: {first['msg']}" if place else str(first["msg"])
        raise Refused(Problem.INVALID, what[:_SHOWN], field=place) from error


def require(neutral: Mapping[str, tuple[object, Iterable[object]]]) -> None:
    """Raise Refused for the first field whose value is none of those with which it changes nothing: what is not
    supported is never ignored."""
    for name, (value, allowed) in neutral.items():
        if value is not None and value not in tuple(allowed):
            raise Refused(Problem.INVALID, f"{name} = {json.dumps(value)[:_SHOWN]} is not supported", field=name)


def sse(data: Mapping[str, Any] | str, name: str = "") -> bytes:
    """Return an event of a text/event-stream."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + b"data: " + text.encode() + b"\n\n"
