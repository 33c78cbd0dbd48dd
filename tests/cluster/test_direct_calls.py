"""Lines between processes of one machine: whole answers to whom they belong, and a loud end."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.cluster.direct_calls import HEAD, CallerConnection, ConnectionLost, serve

pytestmark = pytest.mark.anyio


class Backwards:
    async def reply(self, body: bytes) -> bytes:
        """Later calls may be answered first."""
        for _ in range(random.Random(body).randrange(4)):
            await asyncio.sleep(0)
        return body[::-1]

    def end(self) -> None:
        pass


@asynccontextmanager
async def desk() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        socket_path = str(Path(folder) / "socket_path")
        async with await serve(socket_path, Backwards):
            yield socket_path


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_frames_come_whole_and_in_order_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    async def run() -> list[bytes]:
        connection = CallerConnection()
        replies = [connection.loop.create_future() for _ in bodies]
        connection._waiting = dict(enumerate(replies))
        stream = b"".join(HEAD.pack(number, len(body)) + body for number, body in enumerate(bodies))
        place = turn = 0
        while place < len(stream):
            step = cuts[turn % len(cuts)]
            connection.data_received(stream[place : place + step])
            place, turn = place + step, turn + 1
        return [reply.result() for reply in replies]

    assert asyncio.run(run()) == bodies


async def test_every_call_gets_its_own_answer_also_a_large_one() -> None:
    async with desk() as socket_path:
        connection = await CallerConnection.open(socket_path)
        bodies = [random.Random(number).randbytes(1 << (number % 23)) for number in range(46)]
        assert await asyncio.gather(*map(connection.ask, bodies)) == [body[::-1] for body in bodies]
        connection.close()


async def test_a_call_that_was_given_up_disturbs_no_other() -> None:
    async with desk() as socket_path:
        connection = await CallerConnection.open(socket_path)
        given_up = asyncio.create_task(connection.ask(b"early"))
        await asyncio.sleep(0)
        given_up.cancel()
        assert await connection.ask(b"later") == b"retal"
        assert given_up.cancelled()
        connection.close()


async def test_whoever_waits_or_asks_hears_that_the_other_end_is_gone() -> None:
    with pytest.raises(ConnectionLost, match="nobody"):
        await CallerConnection.open("/tmp/there-is-no-such-socket")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        socket_path = str(Path(folder) / "socket_path")
        arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

        def answers_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.put_nowait(writer)

        server = await asyncio.start_unix_server(answers_nothing, socket_path)
        connection = await CallerConnection.open(socket_path)
        waiting = asyncio.create_task(connection.ask(b"x"))
        (await arrived.get()).close()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ConnectionLost):
            await connection.ask(b"y")
        server.close()
