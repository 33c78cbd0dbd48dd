"""Terminals: what an interactive program expects of one."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.sandbox.background import refused_at_last
from tests.contract.sandbox.support import end_of, in_a_box, ok, output_until

from etude.sandbox import Box, Feature, Process, RequestRefused, Terminal

NEEDS = Feature.PTY
JOB = b"""
import os, time
in_front = None
while True:
    before, in_front = in_front, os.tcgetpgrp(0) == os.getpgrp()
    if in_front != before:
        print("in front" if in_front else "behind", flush=True)
    time.sleep(0.01)
"""
"""Prints whether it is in the terminal's foreground process group, each time that changes. Tests wait for this before
they press a key, since a program that a shell starts by vfork cannot be stopped before it runs."""


async def shell(box: Box, **more: Terminal) -> Process:
    """Start an interactive shell with a distinctive prompt."""
    process = await box.start(
        ["sh", "-i"], timeout=60, env={"PS1": "ready> ", "ENV": ""}, terminal=more.get("terminal", Terminal())
    )
    await output_until(process, b"ready> ")
    return process


async def run(process: Process, line: str) -> str:
    """Type a line at the prompt; return what the terminal shows up to the next prompt."""
    await process.write(f"{line}\n".encode())
    return (await output_until(process, b"ready> ")).decode().removesuffix("ready> ").replace("\r", "")


class TerminalCases:
    @in_a_box(needs=NEEDS)
    async def test_a_terminal_is_one_to_programs(self, box: Box) -> None:
        look = (
            "import os, sys\n"
            "print(*(os.isatty(n) for n in range(3)), os.ttyname(0) == os.ttyname(2), os.environ['TERM'] != 'dumb')\n"
            "print(os.getpgrp() == os.tcgetpgrp(0), os.getsid(0) == os.getpid(), *os.get_terminal_size())\n"
            "open('/dev/tty', 'w').write('mine\\n')\n"
            "print(os.stat(os.ttyname(0)).st_uid == os.getuid())"
        )
        process = await box.start(["python", "-c", look], timeout=20, terminal=Terminal(33, 99))
        code, said = await end_of(process)
        assert said.decode().split("\r\n") == ["True True True True True", "True True 99 33", "mine", "True", ""]
        assert code == 0
        plain = await box.start(["python", "-c", "import os; print(os.isatty(0), os.isatty(1))"], timeout=20)
        assert await end_of(plain) == (0, b"False False\n")
        assert ok(await box.exec("(: >/dev/tty) 2>/dev/null && echo one || echo none", timeout=5)) == "none\n"

    @in_a_box(needs=NEEDS)
    async def test_a_new_size_is_told(self, box: Box) -> None:
        wait = (
            "import os, signal, sys\n"
            "tell = lambda *_: os.write(1, b'now %d %d\\n' % tuple(os.get_terminal_size()))\n"
            "signal.signal(signal.SIGWINCH, tell)\n"
            "os.write(1, b'up\\n')\nsys.stdin.readline()"
        )
        process = await box.start(["python", "-c", wait], timeout=20, terminal=Terminal(10, 20))
        await output_until(process, b"up")
        await process.resize(50, 60)
        assert b"now 60 50" in await output_until(process, b"50\r\n")
        for rows, columns in ((0, 10), (10, 0), (1 << 20, 10)):
            with pytest.raises(RequestRefused):
                await process.resize(rows, columns)
        await process.kill()

    @in_a_box(needs=NEEDS)
    async def test_end_of_input_ends_the_reader(self, box: Box) -> None:
        process = await box.start("cat; echo after", timeout=20, terminal=Terminal())
        await process.write(b"line\n")
        await output_until(process, b"line\r\nline\r\n")
        await process.close_stdin()
        assert await end_of(process) == (0, b"after\r\n")

    @in_a_box(needs=NEEDS)
    async def test_jobs_are_controlled_from_the_shell(self, box: Box) -> None:
        await box.write_file("job.py", JOB)
        process = await shell(box)
        await process.write(b"python job.py\n")
        await output_until(process, b"in front")
        await process.write(b"\x1a")
        await output_until(process, b"ready> ")
        assert "topped" in await run(process, "jobs")
        await process.write(b"bg\n")
        if b"ready> " not in await output_until(process, b"behind\r\n"):
            await output_until(process, b"ready> ")
        assert "unning" in await run(process, "jobs")
        await process.write(b"fg\n")
        await output_until(process, b"in front")
        await process.write(b"\x03")
        await output_until(process, b"ready> ")
        assert "130" in await run(process, "echo $?")
        assert await run(process, "jobs") == "jobs\n"
        await process.write(b"\x04")
        assert (await end_of(process))[0] in (0, 130)

    @in_a_box(needs=NEEDS)
    async def test_history_in_a_terminal_does_not_wait_for_a_pager(self, box: Box) -> None:
        history = (
            "git init -q . && for i in 1 2 3; do git -c user.name=a -c user.email=a@b commit -q --allow-empty -m m$i; "
            "done; git log --oneline"
        )
        process = await box.start(history, timeout=20, terminal=Terminal(rows=2, columns=20))
        code, said = await end_of(process)
        assert code == 0
        assert said.count(b"m") >= 3

    @in_a_box(needs=NEEDS)
    async def test_a_terminal_that_nobody_reads_holds_nobody_up(self, box: Box) -> None:
        flood = await box.start("yes & sleep 0.4; kill $!; echo done; read x", timeout=30, terminal=Terminal())
        beside = await asyncio.gather(*(box.exec("echo beside", timeout=10) for _ in range(5)))
        assert [result.stdout for result in beside] == [b"beside\n"] * 5
        await output_until(flood, b"done")
        deaf = await box.start("stty -icanon -echo; echo up; sleep 60", timeout=60, terminal=Terminal())
        await output_until(deaf, b"up")
        await refused_at_last(lambda: deaf.write(b"x" * 100_000))
        await deaf.kill()
        assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"
