"""A pid 1 that breaks its protocol loses its box, and nothing else happens. `make fuzz` looks for more of the kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.contract.sandbox.support import in_loop

from etude.sandbox import BoxSpec, RequestRefused, SandboxLost
from etude.sandbox.inside import wire
from etude.sandbox.served.box import ServedBox
from etude.sandbox.served.channel import Channel

RESULT = {"code": 0, "split": 0, "seconds": 0.1, "cpu_seconds": 0.1, "limit": "", "truncated": False}


class Line(asyncio.Transport):
    def __init__(self, protocol: Channel) -> None:
        super().__init__()
        self.protocol = protocol

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


async def ask(request: Callable[[ServedBox], Awaitable[Any]], *frames: bytes) -> Any:
    """Make a request of a box whose pid 1 sends these frames."""
    channel = Channel("b")
    channel.connection_made(Line(channel))
    asked = asyncio.ensure_future(request(ServedBox("b", BoxSpec("image", workdir="/work"), channel)))
    await asyncio.sleep(0)
    for frame in frames:
        channel.data_received(frame)
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        return await asked


async def polled(box: ServedBox) -> Any:
    return await (await box.start("cat", timeout=9)).poll(wait=1)


async def frozen(box: ServedBox) -> bool:
    async with box.frozen(kill=False) as still:
        return still


@pytest.mark.parametrize(
    "frame",
    [
        *(b"\xff" * 8, wire.LENGTHS.pack(1, 0) + b"x", wire.LENGTHS.pack(2, 0) + b"[]", wire.LENGTHS.pack(0, 0)),
        wire.LENGTHS.pack(100_000, 0) + b"[" * 100_000,
        wire.LENGTHS.pack((64 << 20) + 1, 0),
        *(wire.pack({"ticket": ticket}) for ticket in ([], {}, "1", 1.0, True)),  # type: ignore[dict-item]
        *(wire.pack({"ticket": 1, "stream": stream}) for stream in (0, 3, "1", [1], None)),
        *(wire.pack({"ticket": 1, **part}) for part in ({"end": 0}, {"end": "0", "first": 0, "limit": ""})),
        wire.pack({"ready": False}),
        wire.pack({"ready": 1, "step": 1, "error": ""}),
        *(wire.pack({"ticket": 1, **RESULT, name: None}) for name in RESULT),
        *(wire.pack({"ticket": 1, **RESULT, "error": error}) for error in ("no kind", 1)),
    ],
)
@in_loop
async def test_a_frame_that_pid_1_never_sends(frame: bytes) -> None:
    with pytest.raises(SandboxLost, match="its pid 1"):
        await ask(lambda box: box.exec("true", timeout=5), frame)


@in_loop
async def test_a_request_that_pid_1_would_not_take_is_refused() -> None:
    with pytest.raises(RequestRefused, match="send fewer at a time"):
        await ask(lambda box: box.layout(["x" * (64 << 20)]))


@pytest.mark.parametrize(
    ("request_of", "answer", "payload"),
    [
        (lambda box: box.stats(), {"processes": 1}, b""),
        (lambda box: box.read_tree(), {}, b""),
        (lambda box: box.read_tree(), {"entries": [1]}, b""),
        (lambda box: box.read_tree(), {"entries": [["a", "file", 0o644, 0, 0, 0, 5, ""]]}, b"four"),
        (lambda box: box.read_tree(), {"entries": [["a", "device", 0o644, 0, 0, 0, 0, ""]]}, b""),
        (lambda box: box.read_tree(), {"entries": [["a", "file", 0o644, 0, 0, 0, -1, ""]]}, b""),
        (lambda box: box.read_tree(), {"entries": [["\ud800", "file", 0o644, 0, 0, 0, 0, ""]]}, b""),
        (lambda box: box.read_tree(), {"entries": [["a", "file", 0o644, 1 << 99, 0, 0, 0, ""]]}, b""),
        (frozen, {"writers": "all", "still": True}, b""),
        (frozen, {"writers": []}, b""),
    ],
)
@in_loop
async def test_an_answer_that_is_none(
    request_of: Callable[[ServedBox], Awaitable[Any]], answer: dict[str, Any], payload: bytes
) -> None:
    with pytest.raises(SandboxLost, match="with something that is no answer"):
        await ask(request_of, wire.pack({"ticket": 1, **answer}, payload))


@pytest.mark.parametrize("answer", [{}, {"first": "0"}, {"ended": True}])
@in_loop
async def test_a_poll_without_an_answer(answer: dict[str, Any]) -> None:
    with pytest.raises(SandboxLost, match="answered poll with something that is no answer"):
        await ask(polled, wire.pack({"ticket": 1}), wire.pack({"ticket": 2, **answer}))


@in_loop
async def test_frames_of_another_kind_of_command() -> None:
    with pytest.raises(SandboxLost, match="a frame with 'stream'"):
        await ask(polled, wire.pack({"ticket": 1}), wire.pack({"ticket": 1, "stream": 1}, b"x"))
    with pytest.raises(SandboxLost, match="a frame with 'end'"):
        await ask(
            lambda box: box.exec("true", timeout=5, on_output=lambda stream, data: None),
            wire.pack({"ticket": 1, "end": 0, "first": 0, "limit": ""}),
        )
