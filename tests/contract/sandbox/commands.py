"""Commands: streams, exit codes, ending whole process trees, limits."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable

import pytest
from tests.contract.sandbox.support import (
    PATIENCE,
    empties,
    in_a_box,
    ok,
    processes_in,
    under_way,
)

from etude.sandbox import (
    Box,
    BoxSpec,
    Feature,
    Limits,
    RequestRefused,
    Sandboxes,
)

LEAVE = b"""
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
made = libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 3, 0o1600)
assert min(made) >= 0, made
print('made', flush=True)
if sys.argv[1:]:
    open('ready', 'w').close()
    while not os.path.exists('go'):
        time.sleep(0.02)
"""


class CommandCases:
    @in_a_box()
    async def test_exit_codes_and_signals(self, box: Box) -> None:
        assert (await box.exec(["true"], timeout=5)).code == 0
        assert (await box.exec("exit 7", timeout=5)).code == 7
        assert (await box.exec("kill -TERM $$", timeout=5)).code == 128 + 15
        assert (await box.exec("kill -KILL $$", timeout=5)).code == 128 + 9
        assert (await box.exec(["no-such-program"], timeout=5)).code == 127
        assert (await box.exec(["/work/calc.py"], timeout=5)).code == 126
        assert (await box.exec(["/work/run.sh"], timeout=5)).stdout == b"ran\n"

    @in_a_box()
    async def test_streams_stdin_env_and_cwd(self, box: Box) -> None:
        both = await box.exec("echo out; echo err >&2", timeout=5)
        assert (both.stdout, both.stderr) == (b"out\n", b"err\n")
        code = "import sys, ctypes, calc; print(tuple(sys.version_info), calc.add(1, 2))"
        assert ok(await box.exec(["python", "-c", code], timeout=10)) == f"{tuple(sys.version_info)} 3\n"
        assert (await box.exec(["python", "-m", "unittest", "-h"], timeout=10)).code == 0
        data = bytes(range(256)) * 4
        assert (await box.exec(["wc", "-c"], timeout=5, stdin=data * 3000)).stdout.strip() == b"3072000"
        assert (await box.exec("exec 0<&-; echo unread", timeout=5, stdin=data * 3000)).stdout == b"unread\n"
        assert (await box.exec(["head", "-c", "1024"], timeout=5, stdin=data)).stdout[:1000] == data[:1000]
        assert (await box.exec(["cat"], timeout=5)).stdout == b""
        assert ok(await box.exec("echo $A $LANG $TZ", timeout=5, env={"A": "b"})) == "b C.UTF-8 UTC\n"
        assert ok(await box.exec("pwd", timeout=5)) == "/work\n"
        assert ok(await box.exec("pwd", timeout=5, cwd="pkg")) == "/work/pkg\n"
        assert ok(await box.exec("pwd", timeout=5, cwd="/tmp")) == "/tmp\n"
        assert (await box.exec("pwd", timeout=5, cwd="/nowhere")).code != 0

    @in_a_box(Limits())
    async def test_commands_inherit_nothing_but_their_streams(self, sandboxes: Sandboxes, box: Box) -> None:
        """A descriptor of the box's own machinery would let a command speak in its name."""
        for user in ["agent"] + ["grader"] * (Feature.SECOND_USER in sandboxes.features):
            listing = "import os; print(*sorted(os.listdir('/proc/self/fd')))"
            listed = await box.exec(["python", "-c", listing], timeout=5, user=user)
            assert ok(listed) == "0 1 2 3\n"  # 3 is the listing itself

    @in_a_box()
    async def test_environment_is_minimal_and_the_same_every_time(self, sandboxes: Sandboxes, image: str) -> None:
        boxes = [await sandboxes.create(BoxSpec(image)) for _ in range(2)]
        first, second = [ok(await box.exec("env | sort; ls -la --full-time", timeout=5)) for box in boxes]
        # The folder above is the box's own; everything else is content.
        assert [line for line in first.splitlines() if not line.endswith(" ..")] == [
            line for line in second.splitlines() if not line.endswith(" ..")
        ]
        assert not any(name in first for name in ("VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "SSH", "TOKEN"))

    @in_a_box()
    async def test_timeout_ends_the_whole_tree(self, box: Box) -> None:
        began = time.monotonic()
        result = await box.exec("echo a; sleep 60 & setsid sleep 60 & (setsid setsid sleep 60 &) ; sleep 60", timeout=2)
        assert result.timed_out
        assert (result.limit, result.code, result.stdout) == ("time", 137, b"a\n")
        assert time.monotonic() - began < 30, "nobody waited for the sleepers"
        assert await processes_in(box) == []

    @in_a_box()
    async def test_daemons_end_with_their_command(self, box: Box) -> None:
        result = await box.exec("setsid nohup sleep 60 >/dev/null 2>&1 & (setsid sleep 60 &); exit 3", timeout=5)
        assert (result.code, result.timed_out) == (3, False)
        assert result.seconds < 30, "nobody waited for the sleepers"
        assert await processes_in(box) == []

    @in_a_box(needs=Feature.ISOLATED)
    async def test_shared_memory_ends_with_the_processes_that_use_it(self, box: Box) -> None:
        await box.write_file("leave.py", LEAVE)
        count = "cat /proc/sysvipc/$0 | grep -vc key"
        made = await box.exec(["python", "leave.py"], timeout=20)
        assert made.stdout == b"made\n", made
        assert (await box.exec(["sh", "-c", count, "*"], timeout=5)).stdout == b"0\n"
        long = await under_way(box, "exec python leave.py until go")
        while b"ready" not in (await box.exec("ls; cat /proc/sysvipc/shm", timeout=5)).stdout:
            pass
        assert (await box.exec(["python", "leave.py"], timeout=20)).stdout == b"made\n"
        kept = await box.exec(["sh", "-c", count, "shm"], timeout=5)
        assert kept.stdout in (b"0\n", b"1\n"), "the running command's own, where commands share them at all"
        await box.write_file("go", b"")
        await long
        assert (await box.exec(["sh", "-c", count, "*"], timeout=5)).stdout == b"0\n"

    @in_a_box()
    async def test_concurrent_commands_end_only_their_own(self, box: Box) -> None:
        long = await under_way(box, "until test -e go; do sleep 0.02; done; echo long")
        short = await box.exec("(setsid sleep 61 &); sleep 62 & echo short", timeout=5)
        assert short.stdout == b"short\n"
        running = await box.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '", timeout=5)
        assert b"until test -e go" in running.stdout
        assert b"sleep 61" not in running.stdout
        assert b"sleep 62" not in running.stdout
        cut = await box.exec("sleep 30", timeout=0.2)
        assert cut.timed_out
        await box.write_file("go", b"")
        assert (await long).stdout == b"long\n"
        many = await asyncio.gather(*(box.exec(f"echo {n}; exit {n}", timeout=10) for n in range(8)))
        assert [(r.code, r.stdout) for r in many] == [(n, f"{n}\n".encode()) for n in range(8)]

    @in_a_box()
    async def test_output_is_bounded_and_drained(self, box: Box) -> None:
        flood = await box.exec(
            "head -c 20000000 /dev/zero & head -c 5000000 /dev/zero >&2; wait; echo done >&2", timeout=20
        )
        assert (flood.code, len(flood.stdout), len(flood.stderr), flood.truncated) == (0, 1000, 1000, True)
        endless = await box.exec(["yes"], timeout=1)
        assert endless.timed_out
        assert endless.truncated
        held = await box.exec("sleep 30 >&1 & echo x", timeout=5)
        assert (held.stdout, held.code, held.truncated) == (b"x\n", 0, False)

    @in_a_box()
    async def test_cancelled_command_ends(self, box: Box) -> None:
        task = await under_way(box, "sleep 60")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await empties(box)

    @in_a_box(Limits())
    async def test_bad_requests_are_refused(self, sandboxes: Sandboxes, image: str, box: Box) -> None:
        requests: list[Awaitable[object]] = [
            box.exec([], timeout=5),
            box.exec("true", timeout=0),
            box.exec(["a\0b"], timeout=5),
            box.exec(["echo", "a\0b"], timeout=5),
            box.exec("true", timeout=5, env={"A=B": "c"}),
            sandboxes.create(BoxSpec("nosuchimage")),
            sandboxes.create(BoxSpec(image, workdir="/proc")),
            sandboxes.add_image({"../x": b""}),
            sandboxes.add_image({"a": b"", "a/b": b""}),
            box.fork(0),
        ]
        for request in requests:
            with pytest.raises(RequestRefused):
                await request

    @in_a_box()
    async def test_output_is_passed_on_as_it_comes(self, box: Box) -> None:
        heard: list[tuple[int, bytes]] = []
        first = asyncio.Event()

        def hear(stream: int, data: bytes) -> None:
            heard.append((stream, data))
            first.set()

        running = asyncio.create_task(
            box.exec(
                "echo one; while ! [ -e go ]; do sleep 0.02; done; echo two >&2",
                timeout=2 * PATIENCE,
                on_output=hear,
            )
        )
        await asyncio.wait_for(first.wait(), PATIENCE)
        assert heard == [(1, b"one\n")]
        assert not running.done()
        await box.write_file("go", b"")
        result = await running
        assert heard == [(1, b"one\n"), (2, b"two\n")]
        assert (result.stdout, result.stderr, result.code) == (b"one\n", b"two\n", 0)
        heard.clear()
        flood = await box.exec("head -c 300000 /dev/zero; echo >&2", timeout=10, on_output=hear)
        assert (flood.truncated, len(flood.stdout)) == (True, 1000)
        assert b"".join(data for stream, data in heard if stream == 1) == flood.stdout

    @in_a_box()
    async def test_a_listener_that_fails_ends_its_command_alone(self, box: Box) -> None:
        def fail(stream: int, data: bytes) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await box.exec("echo x; exec sleep 60", timeout=60, on_output=fail)
        assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"
        assert await empties(box)

    @in_a_box(Limits())
    async def test_binary_output_and_huge_lines_come_as_they_are(self, box: Box) -> None:
        code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000); sys.stderr.write('x' * 900000)"
        result = await box.exec(["python", "-c", code], timeout=10)
        assert result.stdout == bytes(range(256)) * 1000
        assert result.stderr == b"x" * 900_000
        assert not result.truncated

    @in_a_box()
    async def test_words_come_through_as_they_are(self, box: Box) -> None:
        words = ["a b", "", "$HOME", "new\nline", "ü", "odd\udcff", "'", "-n"]
        shown = await box.exec(["printf", "<%s>", *words], timeout=5)
        assert shown.stdout == "".join(f"<{word}>" for word in words).encode("utf-8", "surrogateescape")

    @in_a_box()
    async def test_a_command_may_close_its_streams_and_go_on(self, box: Box) -> None:
        result = await box.exec("echo before; exec >&- 2>&- <&-; sleep 0.3; echo later >said; exit 4", timeout=5)
        assert (result.code, result.stdout, result.timed_out) == (4, b"before\n", False)
        assert await box.read_file("said") == b"later\n"

    @in_a_box()
    async def test_the_dead_are_collected(self, box: Box) -> None:
        """Orphans of orphans end under pid 1, while other commands run."""
        running = await under_way(box, "until test -e go; do sleep 0.02; done")
        ok(await box.exec("for i in 1 2 3 4 5; do (sh -c 'sh -c true & exit' &); done; sleep 0.1", timeout=5))
        states = "cat /proc/[0-9]*/stat 2>/dev/null | cut -d' ' -f3"
        async with asyncio.timeout(PATIENCE):  # One that is just dying is collected at the end of the next command.
            while "Z" in ok(await box.exec(states, timeout=5)):
                pass
        await box.write_file("go", b"")
        assert (await running).code == 0

    @in_a_box()
    async def test_a_hundred_commands_in_a_row(self, box: Box) -> None:
        # The shell itself looks: whether it starts one program of a pipeline before another sees it is chance.
        look = "set -- /proc/[0-9]*; echo $#; set -- /proc/self/fd/*; echo $#; ulimit -n"
        before = ok(await box.exec(look, timeout=5))
        for number in range(100):
            result = await box.exec(["sh", "-c", f"echo {number}; exit {number % 128}"], timeout=10)
            assert (result.code, result.stdout) == (number % 128, b"%d\n" % number)
        assert ok(await box.exec(look, timeout=5)) == before

    @in_a_box(Limits())
    async def test_home_and_name_are_the_users(self, box: Box) -> None:
        who = "id -un; echo $USER $LOGNAME $HOME; cd && pwd"
        assert ok(await box.exec(who, timeout=5)) == "agent\nagent agent /home/agent\n/home/agent\n"
        assert ok(await box.exec("id -un; id -gn", timeout=5, user="1000")) == "agent\nagent\n"
        assert ok(await box.exec("echo $HOME $USER", timeout=5, env={"HOME": "/tmp"})) == "/tmp agent\n"
        for unknown in ("nosuchuser", "agent:nosuchgroup", "70000", "-1", "agent:70000"):
            with pytest.raises(RequestRefused, match=r"no user|no group|one user") as refused:
                await box.exec("true", timeout=5, user=unknown)
            assert "\n" not in str(refused.value)
        assert not any("true" in line for line in box.commands)

    @in_a_box()
    async def test_other_users_and_groups_of_the_image(self, sandboxes: Sandboxes, image: str) -> None:
        add = "echo 'dev:x:2000:2001::/srv/dev:/bin/sh' >>/etc/passwd; echo 'team:x:2002:a,dev' >>/etc/group"
        if Feature.ROOT_USER not in sandboxes.features:
            pytest.skip("this backend has no root_user")
        box = await sandboxes.create(BoxSpec(image))
        ok(await box.exec(add, timeout=5, user="root"))
        who = "id -u; id -G; echo $HOME"
        assert ok(await box.exec(who, timeout=5, user="dev")) == "2000\n2001 2002\n/srv/dev\n"
        assert ok(await box.exec(who, timeout=5, user="2000:0")) == "2000\n0\n/srv/dev\n"
        assert ok(await box.exec(who, timeout=5, user="dev:team")) == "2000\n2002\n/srv/dev\n"

    @in_a_box(Limits())
    async def test_root_rules_the_box_and_nothing_else(self, sandboxes: Sandboxes, box: Box) -> None:
        if Feature.ROOT_USER not in sandboxes.features:
            with pytest.raises(RequestRefused):
                await box.exec("true", timeout=5, user="root")
            return
        mine = "id -u; echo x >/etc/new; chown 1000:1000 /etc/new; echo y >f; chmod 600 f; chown 4321 f; cat f"
        assert ok(await box.exec(mine, timeout=5, user="root")) == "0\ny\n"
        assert ok(await box.exec("echo z >>/etc/new; stat -c %u f; cat f || true", timeout=5)) == "4321\n"
        drop = "import os; os.setgid(1000); os.setuid(1000); print(os.getuid(), *open('/etc/new'))"
        assert ok(await box.exec(["python", "-c", drop], timeout=5, user="root")) == "1000 x\n z\n\n"

    @in_a_box(Limits())
    async def test_second_user(self, sandboxes: Sandboxes, box: Box) -> None:
        if Feature.SECOND_USER not in sandboxes.features:
            with pytest.raises(RequestRefused):
                await box.exec("true", timeout=5, user="grader")
            return
        secret = "umask 077; echo s >/tmp/s; cat /tmp/s; id -un"
        assert ok(await box.exec(secret, timeout=5, user="grader")) == "s\ngrader\n"
        assert (await box.exec("cat /tmp/s", timeout=5)).code != 0
        sleeper = await under_way(box, "until test -e /tmp/go; do sleep 0.02; done", user="grader")
        await box.exec("kill -9 -1", timeout=5)
        ok(await box.exec("touch /tmp/go", timeout=5))
        assert (await sleeper).code == 0

    @in_a_box(Limits())
    async def test_commands_are_remembered_for_replay(self, sandboxes: Sandboxes, image: str, box: Box) -> None:
        await box.exec("echo a >>log", timeout=5)
        await box.exec(["sh", "-c", 'echo "$1" >>/work/log', "-", "b c"], timeout=5, cwd="/tmp")
        await box.exec("echo $WHAT >>log", timeout=5, env={"WHAT": "d e"})
        (child,) = await box.fork()
        await box.exec("echo parent >>log", timeout=5)
        await child.exec("echo child >>log", timeout=5)
        assert child.commands[:-1] == box.commands[:-1]
        assert len(child.commands) == 4
        again = await sandboxes.create(BoxSpec(image))
        for line in child.commands:
            ok(await again.exec(line, timeout=5))
        assert await again.read_file("log") == await child.read_file("log") == b"a\nb c\nd e\nchild\n"

    @in_a_box(Limits())
    async def test_stats_say_what_a_box_uses(self, box: Box) -> None:
        before = await box.stats()
        assert before.processes == 0
        hold = (
            "import os, time\nx = b'x' * (40 << 20)\nopen('f', 'wb').write(x[: 1 << 20])\n"
            "while not os.path.exists('go'): time.sleep(0.02)"
        )
        running = asyncio.create_task(box.exec(["python", "-c", hold], timeout=2 * PATIENCE))
        while "f" not in await box.list_files() and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        during = await box.stats()
        assert during.memory_bytes > 30 << 20
        ok(await box.exec("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done", timeout=20))
        after = await box.stats()
        assert after.cpu_seconds > before.cpu_seconds
        assert after.disk_bytes >= before.disk_bytes + (1 << 20)
        assert after.seconds > before.seconds
        assert after.processes == 1
        await box.write_file("go", b"")
        assert (await running).code == 0
        assert (await box.stats()).processes == 0
