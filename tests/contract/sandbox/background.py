"""Background commands: polling, writing to and killing them, and bounds on their memory while nobody polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.contract.sandbox.support import (
    PATIENCE,
    end_of,
    in_a_box,
    ok,
    output_until,
    processes_in,
)

from etude.sandbox import Box, BoxSpec, Feature, Limits, Poll, RequestRefused, Sandboxes, SandboxLost

NEEDS = Feature.BACKGROUND


async def refused_at_last(write: Callable[[], Awaitable[None]]) -> None:
    for _ in range(60):
        try:
            await write()
        except RequestRefused:
            return
    pytest.fail("nothing was refused")


class BackgroundCases:
    @in_a_box(needs=NEEDS)
    async def test_a_prompt_is_seen_and_answered(self, box: Box) -> None:
        process = await box.start("printf 'name? '; read name; echo hello $name >&2; exit 3", timeout=20)
        assert await output_until(process, b"? ") == b"name? "
        assert (await process.poll()).output == b""
        await process.write(b"you\n")
        assert await end_of(process) == (3, b"hello you\n")
        for _ in range(2):
            look = await process.poll(wait=5)
            assert (look.output, look.code, look.skipped, look.limit) == (b"", 3, 0, "")

    @in_a_box(needs=NEEDS)
    async def test_input_ends_when_it_is_closed(self, box: Box) -> None:
        counter = await box.start(["wc", "-c"], timeout=20)
        for _ in range(3):
            await counter.write(bytes(300_000))
        await counter.close_stdin()
        await counter.close_stdin()
        with pytest.raises(RequestRefused):
            await counter.write(b"more")
        code, said = await end_of(counter)
        assert (code, said.strip()) == (0, b"900000")
        with pytest.raises(RequestRefused, match="ended"):
            await counter.write(b"more")

    @in_a_box(needs=NEEDS)
    async def test_input_that_nobody_reads_is_bounded(self, box: Box) -> None:
        sleeper = await box.start("sleep 60", timeout=60)
        await refused_at_last(lambda: sleeper.write(bytes(100_000)))
        with pytest.raises(RequestRefused, match="more than"):
            await sleeper.write(bytes(3_000_000))
        closed = await box.start("exec <&-; echo closed; sleep 60", timeout=60)
        await output_until(closed, b"closed")
        await refused_at_last(lambda: closed.write(b"x"))

    @in_a_box(needs=NEEDS)
    async def test_output_that_nobody_takes_is_bounded_and_counted(self, box: Box) -> None:
        total = 3_000_000
        counting = "import sys\nfor n in range(300000): sys.stdout.write('%09d\\n' % n)\nsys.stdout.flush()\ninput()"
        process = await box.start(["python", "-c", counting], timeout=20)
        heard = skipped = 0
        last = b""
        while heard + skipped < total:
            look = await process.poll(wait=10)
            assert look.code is None
            assert len(look.output) <= 1000
            heard, skipped, last = heard + len(look.output), skipped + look.skipped, (last + look.output)[-10:]
        assert heard + skipped == total
        assert skipped > total // 2
        assert last == b"000299999\n"
        quiet = await box.start("head -c 100000 /dev/zero; echo end", timeout=20)
        while (await box.stats()).processes > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        look = await quiet.poll(wait=5)
        assert (len(look.output), look.skipped, look.output[-4:]) == (1000, 100_004 - 1000, b"end\n")

    @in_a_box(needs=NEEDS)
    async def test_it_survives_the_end_of_other_commands(self, box: Box) -> None:
        process = await box.start("(setsid sleep 61 &); sleep 62 & echo up; read line; echo $line", timeout=60)
        await output_until(process, b"up")
        async with asyncio.timeout(PATIENCE):
            while await processes_in(box) != ["sleep", "sleep"]:  # The shell speaks before they have begun.
                pass
        assert (await box.exec("sleep 63 & exit 2", timeout=5)).code == 2
        assert (await box.exec("sleep 60", timeout=0.1)).timed_out
        other = await box.start("sleep 64 & wait", timeout=60)
        await other.kill()
        assert await processes_in(box) == ["sleep", "sleep"]
        await process.write(b"still here\n")
        assert await end_of(process) == (0, b"still here\n")
        assert await processes_in(box) == []

    @in_a_box(needs=NEEDS)
    async def test_killed_as_a_whole_and_twice(self, box: Box) -> None:
        process = await box.start("trap '' TERM; (setsid sleep 60 &); sleep 60 & echo up; wait", timeout=60)
        await output_until(process, b"up")
        await process.kill()
        assert await processes_in(box) == []
        look = await process.poll()
        assert (look.code, look.limit) == (137, "")
        await process.kill()
        await process.close_stdin()
        assert (await process.poll()).code == 137

    @in_a_box(needs=NEEDS)
    async def test_its_time_is_limited(self, box: Box) -> None:
        began = time.monotonic()
        process = await box.start("setsid sleep 60 & echo up; sleep 60", timeout=2)
        code, said = await end_of(process)
        assert (code, said, (await process.poll()).limit) == (137, b"up\n", "time")
        assert time.monotonic() - began < 30, "nobody waited for the sleepers"
        assert await processes_in(box) == []

    @in_a_box(Limits(cpu_seconds=1), needs=NEEDS)
    async def test_its_cpu_time_is_limited(self, box: Box) -> None:
        spin = await box.start("while :; do :; done", timeout=2 * PATIENCE)
        code, _ = await end_of(spin, patience=2 * PATIENCE)
        assert code in (137, 128 + 24)
        assert (await spin.poll()).limit == "cpu"

    @in_a_box(needs=NEEDS)
    async def test_a_server_and_its_client(self, box: Box) -> None:
        server = (
            "import socket\n"
            "with socket.create_server(('127.0.0.1', 8123)) as listening:\n"
            "    print('listening', flush=True)\n"
            "    while True:\n"
            "        with listening.accept()[0] as peer: peer.sendall(peer.recv(100).upper())\n"
        )
        client = (
            "import socket\n"
            "with socket.create_connection(('127.0.0.1', 8123)) as s: s.sendall(b'hi'); print(s.recv(9).decode())"
        )
        process = await box.start(["python", "-c", server], timeout=60)
        await output_until(process, b"listening")
        for _ in range(3):
            assert ok(await box.exec(["python", "-c", client], timeout=10)) == "HI\n"
        await process.kill()
        assert (await box.exec(["python", "-c", client], timeout=10)).code != 0

    @in_a_box()
    async def test_it_dies_with_its_box(self, sandboxes: Sandboxes, image: str) -> None:
        if NEEDS not in sandboxes.features:
            pytest.skip(f"this backend has no {NEEDS}")
        box = await sandboxes.create(BoxSpec(image))
        ended = await box.start("echo last; exit 5", timeout=20)
        running = await box.start("sleep 60", timeout=60)
        assert (await ended.poll(wait=5)).output == b"last\n"
        while (await ended.poll(wait=5)).code is None:
            pass
        waiting = asyncio.create_task(running.poll(wait=60))
        await box.exec("true", timeout=5)
        await box.destroy()
        for request in (waiting, running.poll(), running.write(b"x"), running.kill(), box.start("true", timeout=5)):
            with pytest.raises(SandboxLost):
                await request
        assert (await ended.poll()).code == 5

    @in_a_box(needs=NEEDS)
    async def test_a_poll_that_is_given_up_loses_nothing(self, box: Box) -> None:
        process = await box.start("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done; read x", timeout=100)
        heard = b""
        while b"8" not in heard:
            look = asyncio.create_task(process.poll(wait=10))
            await asyncio.sleep(0.01)
            look.cancel()
            (outcome,) = await asyncio.gather(look, return_exceptions=True)
            if isinstance(outcome, Poll):  # It was answered before it was given up.
                heard += outcome.output
            now = await process.poll()
            heard += now.output
            assert now.code is None, (heard, now)
        assert heard == b"".join(b"%d\n" % n for n in range(1, 9))
        both = await asyncio.gather(process.poll(wait=0.1), process.poll(wait=0.1), process.poll())
        assert [look.output for look in both] == [b""] * 3
        await process.write(b"\n")
        ends = await asyncio.gather(*(end_of(process) for _ in range(3)))
        assert ends == [(0, b"")] * 3

    @in_a_box(needs=NEEDS)
    async def test_output_goes_to_one_of_many_that_wait(self, box: Box) -> None:
        process = await box.start("read x; echo once; read x", timeout=20)
        looks = [asyncio.create_task(process.poll(wait=10)) for _ in range(3)]
        await process.write(b"\n")
        assert sorted([(await look).output for look in looks])[-1] == b"once\n"
        assert b"".join([(await look).output for look in looks]) == b"once\n"
        await process.kill()

    @in_a_box(needs=NEEDS)
    async def test_what_cannot_start_has_ended(self, box: Box) -> None:
        code, said = await end_of(await box.start(["no-such-program"], timeout=5))
        assert code == 127
        assert b"no-such-program" in said
        assert (await end_of(await box.start("true", timeout=5, cwd="/nowhere")))[0] == 127
        with pytest.raises(RequestRefused):
            await box.start([], timeout=5)
        with pytest.raises(RequestRefused):
            await box.start("true", timeout=5, user="nosuchuser")
        process = await box.start("read x", timeout=5)
        with pytest.raises(RequestRefused, match="terminal"):
            await process.resize(10, 10)
        await process.kill()
