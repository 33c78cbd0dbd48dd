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

from etude.cluster.direct import HEAD, Line, LineLost, serve


async def backwards(body: bytes) -> bytes:
    """Later calls may be answered first."""
    for _ in range(random.Random(body).randrange(4)):
        await asyncio.sleep(0)
    return body[::-1]


@asynccontextmanager
async def desk() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        door = str(Path(folder) / "door")
        async with await serve(door, backwards):
            yield door


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_frames_come_whole_and_in_order_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    async def run() -> list[bytes]:
        line = Line()
        replies = [line.loop.create_future() for _ in bodies]
        line._waiting = dict(enumerate(replies))
        stream = b"".join(HEAD.pack(number, len(body)) + body for number, body in enumerate(bodies))
        place = turn = 0
        while place < len(stream):
            step = cuts[turn % len(cuts)]
            line.data_received(stream[place : place + step])
            place, turn = place + step, turn + 1
        return [reply.result() for reply in replies]

    assert asyncio.run(run()) == bodies


def test_every_call_gets_its_own_answer_also_a_large_one() -> None:
    async def run() -> None:
        async with desk() as door:
            line = await Line.open(door)
            bodies = [random.Random(number).randbytes(1 << (number % 24)) for number in range(100)]
            assert await asyncio.gather(*map(line.ask, bodies)) == [body[::-1] for body in bodies]
            line.close()

    asyncio.run(run())


def test_a_call_that_was_given_up_disturbs_no_other() -> None:
    async def run() -> None:
        async with desk() as door:
            line = await Line.open(door)
            given_up = asyncio.create_task(line.ask(b"early"))
            await asyncio.sleep(0)
            given_up.cancel()
            assert await line.ask(b"later") == b"retal"
            assert given_up.cancelled()
            line.close()

    asyncio.run(run())


def test_whoever_waits_or_asks_hears_that_the_other_end_is_gone() -> None:
    async def run() -> None:
        with pytest.raises(LineLost, match="nobody"):
            await Line.open("/tmp/there-is-no-such-door")
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            door = str(Path(folder) / "door")
            arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

            def answers_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                arrived.put_nowait(writer)

            server = await asyncio.start_unix_server(answers_nothing, door)
            line = await Line.open(door)
            waiting = asyncio.create_task(line.ask(b"x"))
            (await arrived.get()).close()
            with pytest.raises(LineLost):
                await waiting
            with pytest.raises(LineLost):
                await line.ask(b"y")
            server.close()

    asyncio.run(run())
