"""What a hostile pid 1, or a hostile container behind an engine, sends to the process that owns the box."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import strategies as st
from tests.fuzz.target import Target
from tests.fuzz.targets.values import NUMBERS, TEXTS, mostly, record, written

from etude.cluster.direct_calls import HEAD, _Frames
from etude.sandbox.contract import BoxSpec, BoxStats, ExecResult, Poll, SandboxError
from etude.sandbox.inside import wire
from etude.sandbox.oci.attachment import Attachment
from etude.sandbox.served.box import ServedBox
from etude.sandbox.served.channel import Channel

_PROMISED = (SandboxError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class _Line(asyncio.Transport):
    """The owner's end of the connection: writing leads nowhere."""

    def __init__(self, protocol: Channel) -> None:
        super().__init__()
        self.protocol, self.cut = protocol, False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        if not self.cut:
            self.cut = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


async def _polled(box: ServedBox) -> Poll:
    return await (await box.start("sleep 9", timeout=9)).poll(wait=1)


async def _killed(box: ServedBox) -> None:
    process = await box.start("cat", timeout=9)
    await process.write(b"x")
    await process.kill()


async def _frozen(box: ServedBox) -> bool:
    async with box.frozen(kill=False) as still:
        return still


_REQUESTS: list[tuple[Callable[[ServedBox], Coroutine[Any, Any, Any]], Callable[[Any], bool]]] = [
    (lambda box: box.exec("true", timeout=9), lambda found: _is_result(found)),
    (lambda box: box.exec("true", timeout=9, on_output=lambda stream, data: None), lambda found: _is_result(found)),
    (_polled, lambda found: _is_poll(found)),
    (_killed, lambda found: found is None),
    (lambda box: box.read_file("a"), lambda found: isinstance(found, bytes)),
    (lambda box: box.list_files(), lambda found: all(isinstance(name, str) for name in found)),
    (lambda box: box.layout(["a"]), lambda found: isinstance(found, bytes)),
    (lambda box: box.read_tree(), lambda found: isinstance(found, bytes)),
    (lambda box: box.stats(), lambda found: _are_stats(found)),
    (_frozen, lambda found: isinstance(found, bool)),
]


def _is_result(found: ExecResult) -> bool:
    numbers = type(found.code) is int and isinstance(found.seconds, int | float)
    return numbers and isinstance(found.stdout, bytes) and isinstance(found.limit, str)


def _is_poll(found: Poll) -> bool:
    return (
        isinstance(found.output, bytes)
        and type(found.skipped) is int
        and (found.code is None or type(found.code) is int)
    )


def _are_stats(found: BoxStats) -> bool:
    return type(found.memory_bytes) is int and type(found.processes) is int


async def _serve(data: bytes, through_engine: bool) -> str:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    channel = Channel("b")
    box = ServedBox("b", BoxSpec("image", workdir="/work"), channel)
    line = _Line(channel)
    receive = channel.data_received
    if through_engine:
        attachment = Attachment("c", channel)
        attachment.connection_made(line)
        receive = attachment.data_received
    else:
        channel.connection_made(line)
    asked = []
    for piece in _pieces(data):
        if line.cut:
            break
        receive(piece)
        if not asked and channel._transport is not None:
            asked = [asyncio.ensure_future(request(box)) for request, _ in _REQUESTS]
        await asyncio.sleep(0)
    line.abort()
    await asyncio.sleep(0)
    if through_engine and attachment._upgraded.done():
        attachment._upgraded.exception()
    if asked:
        _, waiting = await asyncio.wait(asked, timeout=2)
        assert not waiting, "a request waits for a pid 1 that is gone"
    assert through_engine or channel.ready.done(), "whoever made the box waits for it"
    answered = 0
    for task, (_, fits) in zip(asked, _REQUESTS, strict=False):
        error = task.exception()
        if error is None:
            assert fits(task.result()), "an answer of another type"
            answered += 1
        elif not isinstance(error, _PROMISED):
            raise error
    return f"{answered} of {len(asked)} answered"


def _pieces(data: bytes) -> list[bytes]:
    """As they might arrive: first little, to have an answer before the first request, then in pieces of any size."""
    step = 1 + sum(data[:7]) % 97
    cuts = [0, min(8, len(data)), *range(8 + step, len(data), step * 7), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(cuts) if begin < end]


_ANSWERS = st.one_of(
    record({"ticket": st.integers(1, 14)}),
    record(
        {
            "ticket": st.integers(1, 14),
            "code": st.integers(0, 255),
            "split": st.integers(0, 9),
            "seconds": st.floats(0, 9),
            "cpu_seconds": st.floats(0, 9),
            "limit": st.sampled_from(["", "time"]),
            "truncated": st.booleans(),
        }
    ),
    record({"ticket": st.integers(1, 14), "first": st.integers(0, 9)}),
    record({"ticket": st.integers(1, 14), "first": st.just(0), "end": st.integers(0, 255), "limit": st.just("")}),
    record({"ticket": st.integers(1, 14), "stream": st.sampled_from([1, 2])}),
    record({"ticket": st.integers(1, 14), "ended": st.just(True)}),
    record(
        {
            "ticket": st.integers(1, 14),
            "error": TEXTS,
            "kind": st.sampled_from(["refused", "ENOENT", "EIO", "errorcode"]),
        }
    ),
    record({"ticket": st.integers(1, 14), "writers": st.lists(TEXTS, max_size=2), "still": st.booleans()}),
    record(
        {
            "ticket": st.integers(1, 14),
            "processes": NUMBERS,
            "memory": NUMBERS,
            "cpu_seconds": NUMBERS,
            "disk": NUMBERS,
            "seconds": NUMBERS,
        }
    ),
    record(
        {
            "ticket": st.integers(1, 14),
            "entries": st.lists(
                st.tuples(
                    *(mostly(usual) for usual in (TEXTS, st.sampled_from(["file", "folder", "link", "hard"]))),
                    *(mostly(st.integers(0, 9)) for _ in range(5)),
                    mostly(TEXTS),
                ).map(list)
                | mostly(st.just([])),
                max_size=3,
            ),
        }
    ),
    record({"ready": st.booleans(), "step": TEXTS, "error": TEXTS}),
)


def _frame(header: object, payload: bytes, lie: int) -> bytes:
    encoded = written(header)
    sizes = {1: (len(encoded) + 1, len(payload)), 2: (len(encoded), 1 << 31), 3: (0, len(payload))}
    return wire.LENGTHS.pack(*sizes.get(lie, (len(encoded), len(payload)))) + encoded + payload


_STREAMS = st.lists(st.builds(_frame, _ANSWERS, st.binary(max_size=12), st.integers(0, 40)), max_size=14).map(b"".join)


def _conversation() -> list[bytes]:
    result = {"code": 0, "split": 2, "seconds": 0.1, "cpu_seconds": 0.1, "limit": "", "truncated": False}
    entries = [[".", "folder", 0o755, 0, 0, 0, 0, ""], ["a", "file", 0o644, 0, 0, 0, 2, ""]]
    frames = [
        ({"ready": True}, b""),
        ({"ticket": 1, **result}, b"hi"),
        ({"ticket": 2, "stream": 1}, b"hi"),
        ({"ticket": 2, **result, "split": 0}, b""),
        ({"ticket": 3}, b""),
        ({"ticket": 4}, b""),
        ({"ticket": 5}, b"content"),
        ({"ticket": 6}, b"a\0b"),
        ({"ticket": 7}, b"a\0" + b"644\0"),
        ({"ticket": 8, "entries": entries}, b"hi"),
        ({"ticket": 9, "processes": 1, "memory": 1, "cpu_seconds": 0.1, "disk": 1, "seconds": 1.0}, b""),
        ({"ticket": 10, "writers": [], "still": True}, b""),
        ({"ticket": 11, "first": 0}, b"x"),
        ({"ticket": 12}, b""),
        ({"ticket": 3, "end": 0, "first": 1, "limit": ""}, b"y"),
        ({"ticket": 13}, b""),
        ({"ticket": 14}, b""),
    ]
    return [b"".join(wire.pack(header, payload) for header, payload in frames)]


def _run_answers(data: bytes) -> str:
    return asyncio.run(_serve(data, False))


_ENGINE = struct.Struct("!BxxxI")
_OPENING = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n"


def _through_engine(stream: bytes, cut: int, kind: int) -> bytes:
    pieces = [stream[:cut], stream[cut:]]
    return _OPENING + b"".join(
        _ENGINE.pack(1 if number else kind, len(piece)) + piece for number, piece in enumerate(pieces)
    )


def _run_engine(data: bytes) -> str:
    return asyncio.run(_serve(data, True))


def _run_calls(data: bytes) -> str:
    """The frames of calls between services are the same however their bytes are cut."""
    found: list[list[tuple[int, bytes]]] = []
    for step in (len(data) + 1, 7):
        frames: list[tuple[int, bytes]] = []

        class Receiver(_Frames):
            def receive(self, number: int, body: bytes, frames: list[tuple[int, bytes]] = frames) -> None:
                frames.append((number, body))

        receiver = Receiver()
        for at in range(0, len(data), step):
            receiver.data_received(data[at : at + step])
        found.append(frames)
    assert found[0] == found[1]
    return f"{min(len(found[0]), 5)} frames"


_CALLS = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=20), st.integers(-2, 20)), max_size=6).map(
    lambda calls: b"".join(HEAD.pack(number, max(0, len(body) + min(lie, 0))) + body for number, body, lie in calls)
)

TARGETS = (
    Target("answers", _run_answers, _STREAMS, ("etude.sandbox.served", "etude.sandbox.inside.wire"), _conversation),
    Target(
        "engine",
        _run_engine,
        st.builds(_through_engine, _STREAMS, st.integers(0, 200), st.integers(0, 3)),
        ("etude.sandbox.oci.attachment", "etude.sandbox.served", "etude.sandbox.inside.wire"),
        lambda: [_through_engine(_conversation()[0], 100, 1), b"HTTP/1.1 404 Not Found\r\n\r\n"],
    ),
    Target("calls", _run_calls, _CALLS, ("etude.cluster.direct_calls",)),
)
