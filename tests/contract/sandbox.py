"""What every sandbox backend must do. A backend's test module subclasses SandboxContract and gives a `make` fixture."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from etude.sandbox import (
    Box,
    BoxBusy,
    BoxSpec,
    DiskFull,
    ExecResult,
    Feature,
    Limits,
    RequestRefused,
    SandboxError,
    Sandboxes,
    SandboxLost,
)

Make = Callable[[], Sandboxes]
FILES = {"calc.py": b"def add(a, b):\n    return a + b\n", "pkg/__init__.py": b"", "run.sh": b"#!/bin/sh\necho ran\n"}
SMALL = Limits(memory_mb=96, processes=20, cpu_seconds=2, file_mb=4, disk_mb=16, output_bytes=1000)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@contextlib.asynccontextmanager
async def opened(make: Make) -> AsyncIterator[tuple[Sandboxes, str]]:
    sandboxes = make()
    try:
        yield sandboxes, await sandboxes.add_image(FILES)
    finally:
        await sandboxes.close()


@contextlib.asynccontextmanager
async def a_box(make: Make, limits: Limits = SMALL) -> AsyncIterator[Box]:
    async with opened(make) as (sandboxes, image):
        yield await sandboxes.create(BoxSpec(image, limits=limits))


async def processes_in(box: Box) -> list[str]:
    """Names of the box's processes, seen from inside, without pid 1 and the looking itself."""
    seen = await box.exec("for p in /proc/[0-9]*; do read -r line <$p/comm && echo $line; done 2>/dev/null", timeout=5)
    names = seen.stdout.decode().split("\n")[:-1]
    return [name for name in names if name not in ("init", "sh")]


def ok(result: ExecResult) -> str:
    assert result.code == 0, result
    return result.stdout.decode()


class SandboxContract:
    # -- commands

    @in_loop
    async def test_exit_codes_and_signals(self, make: Make) -> None:
        async with a_box(make) as box:
            assert (await box.exec(["true"], timeout=5)).code == 0
            assert (await box.exec("exit 7", timeout=5)).code == 7
            assert (await box.exec("kill -TERM $$", timeout=5)).code == 128 + 15
            assert (await box.exec("kill -KILL $$", timeout=5)).code == 128 + 9
            assert (await box.exec(["no-such-program"], timeout=5)).code == 127
            assert (await box.exec(["/work/calc.py"], timeout=5)).code == 126
            assert (await box.exec(["/work/run.sh"], timeout=5)).stdout == b"ran\n"

    @in_loop
    async def test_streams_stdin_env_and_cwd(self, make: Make) -> None:
        async with a_box(make) as box:
            both = await box.exec("echo out; echo err >&2", timeout=5)
            assert (both.stdout, both.stderr) == (b"out\n", b"err\n")
            data = bytes(range(256)) * 4
            assert (await box.exec(["wc", "-c"], timeout=5, stdin=data * 500)).stdout.strip() == b"512000"
            assert (await box.exec(["head", "-c", "1024"], timeout=5, stdin=data)).stdout[:1000] == data[:1000]
            assert (await box.exec(["cat"], timeout=5)).stdout == b""
            assert ok(await box.exec("echo $A $LANG $TZ", timeout=5, env={"A": "b"})) == "b C.UTF-8 UTC\n"
            assert ok(await box.exec("pwd", timeout=5)) == "/work\n"
            assert ok(await box.exec("pwd", timeout=5, cwd="pkg")) == "/work/pkg\n"
            assert ok(await box.exec("pwd", timeout=5, cwd="/tmp")) == "/tmp\n"
            assert (await box.exec("pwd", timeout=5, cwd="/nowhere")).code != 0

    @in_loop
    async def test_commands_inherit_nothing_but_their_streams(self, make: Make) -> None:
        """A descriptor of the box's own machinery would let a command speak in its name."""
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            for user in ["agent"] + ["grader"] * (Feature.SECOND_USER in sandboxes.features):
                listing = "import os; print(*sorted(os.listdir('/proc/self/fd')))"
                listed = await box.exec(["python", "-c", listing], timeout=5, user=user)
                assert ok(listed) == "0 1 2 3\n"  # 3 is the listing itself

    @in_loop
    async def test_environment_is_minimal_and_the_same_every_time(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            boxes = [await sandboxes.create(BoxSpec(image)) for _ in range(2)]
            first, second = [ok(await box.exec("env | sort; ls -la --full-time", timeout=5)) for box in boxes]
            # The folder above is the box's own; everything else is content.
            assert [line for line in first.splitlines() if not line.endswith(" ..")] == [
                line for line in second.splitlines() if not line.endswith(" ..")
            ]
            assert not any(name in first for name in ("VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "SSH", "TOKEN"))

    @in_loop
    async def test_python_is_the_one_that_runs_this(self, make: Make) -> None:
        async with a_box(make) as box:
            code = "import sys, json, ctypes, calc; print(sys.version_info[:3], calc.add(1, 2))"
            version = ".".join(map(str, sys.version_info[:3])).replace(".", ", ")
            assert ok(await box.exec(["python", "-c", code], timeout=10)) == f"({version}) 3\n"
            unittest = await box.exec(["python", "-m", "unittest", "-h"], timeout=10)
            assert unittest.code == 0

    @in_loop
    async def test_timeout_ends_the_whole_tree(self, make: Make) -> None:
        async with a_box(make) as box:
            began = time.monotonic()
            result = await box.exec(
                "echo a; sleep 60 & setsid sleep 60 & (setsid setsid sleep 60 &) ; sleep 60", timeout=0.4
            )
            assert result.timed_out
            assert (result.limit, result.code, result.stdout) == ("time", 137, b"a\n")
            assert time.monotonic() - began < 3
            assert await processes_in(box) == []

    @in_loop
    async def test_daemons_end_with_their_command(self, make: Make) -> None:
        async with a_box(make) as box:
            result = await box.exec("setsid nohup sleep 60 >/dev/null 2>&1 & (setsid sleep 60 &); exit 3", timeout=5)
            assert (result.code, result.timed_out) == (3, False)
            assert result.seconds < 3
            assert await processes_in(box) == []

    @in_loop
    async def test_concurrent_commands_end_only_their_own(self, make: Make) -> None:
        async with a_box(make) as box:
            long = asyncio.create_task(box.exec("sleep 1.2; echo long", timeout=10))
            await asyncio.sleep(0.1)
            short = await box.exec("(setsid sleep 61 &); sleep 62 & echo short", timeout=5)
            assert short.stdout == b"short\n"
            running = await box.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '", timeout=5)
            assert b"sleep 1.2" in running.stdout
            assert b"sleep 61" not in running.stdout
            assert b"sleep 62" not in running.stdout
            cut = await box.exec("sleep 30", timeout=0.2)
            assert cut.timed_out
            assert (await long).stdout == b"long\n"
            many = await asyncio.gather(*(box.exec(f"echo {n}; exit {n}", timeout=10) for n in range(8)))
            assert [(r.code, r.stdout) for r in many] == [(n, f"{n}\n".encode()) for n in range(8)]

    @in_loop
    async def test_output_is_bounded_and_drained(self, make: Make) -> None:
        async with a_box(make) as box:
            flood = await box.exec(
                "head -c 20000000 /dev/zero; head -c 5000000 /dev/zero >&2; echo done >&2", timeout=20
            )
            assert (flood.code, len(flood.stdout), len(flood.stderr), flood.truncated) == (0, 1000, 1000, True)
            endless = await box.exec(["yes"], timeout=0.5)
            assert endless.timed_out
            assert endless.truncated
            held = await box.exec("sleep 30 >&1 & echo x", timeout=5)
            assert (held.stdout, held.code, held.truncated) == (b"x\n", 0, False)

    @in_loop
    async def test_cancelled_command_ends(self, make: Make) -> None:
        async with a_box(make) as box:
            task = asyncio.create_task(box.exec("sleep 60", timeout=60))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)
            assert await processes_in(box) == []

    @in_loop
    async def test_bad_requests_are_refused(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            with pytest.raises(RequestRefused):
                await box.exec([], timeout=5)
            with pytest.raises(RequestRefused):
                await box.exec("true", timeout=0)
            with pytest.raises(RequestRefused):
                await box.exec("true", timeout=5, user="root")
            with pytest.raises(RequestRefused):
                await sandboxes.create(BoxSpec("nosuchimage"))
            with pytest.raises(RequestRefused):
                await sandboxes.create(BoxSpec(image, workdir="/proc"))
            with pytest.raises(RequestRefused):
                await sandboxes.add_image({"../x": b""})
            with pytest.raises(RequestRefused):
                await sandboxes.add_image({"a": b"", "a/b": b""})
            with pytest.raises(RequestRefused):
                await box.fork(0)

    # -- limits

    @in_loop
    async def test_memory_of_one_process_is_limited(self, make: Make) -> None:
        async with a_box(make) as box:
            hog = await box.exec(["python", "-c", "x = bytearray(10**9); print('got it')"], timeout=10)
            assert hog.code != 0
            assert b"MemoryError" in hog.stderr or hog.limit == "memory"

    @in_loop
    async def test_memory_of_all_processes_is_limited(self, make: Make) -> None:
        async with a_box(make) as box:
            code = "import mmap, time\nx = bytearray(40 << 20)\nm = mmap.mmap(-1, 40 << 20)\nm[:] = x\ntime.sleep(20)"
            hogs = await box.exec(f"for i in 1 2 3 4; do python -c '{code}' & done; wait", timeout=15)
            assert (hogs.limit, hogs.code, hogs.timed_out) == ("memory", 137, False)
            assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_loop
    async def test_fork_bomb_ends(self, make: Make) -> None:
        async with a_box(make) as box:
            bomb = await box.exec("b() { b | b & }; b; sleep 60", timeout=1.0)
            assert bomb.timed_out or bomb.code != 0
            assert await processes_in(box) == []
            idle = asyncio.create_task(box.exec("sleep 3", timeout=10))
            await asyncio.sleep(0.1)
            code = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
            assert (await box.exec(["python", "-c", code], timeout=0.7)).timed_out
            assert (await idle).code == 0
            assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_loop
    async def test_cpu_time_is_limited(self, make: Make) -> None:
        async with a_box(make, Limits(cpu_seconds=1)) as box:
            spin = await box.exec("while :; do :; done", timeout=20)
            assert (spin.limit, spin.timed_out) == ("cpu", False)
            assert spin.code in (128 + 24, 137)

    @in_loop
    async def test_file_size_and_disk_are_limited(self, make: Make) -> None:
        async with a_box(make) as box:
            big = await box.exec(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=10"], timeout=10)
            assert big.code != 0
            assert "limit" in big.limit or big.limit == "file"
            with pytest.raises(RequestRefused):
                await box.write_file("big", bytes(5 << 20))

    # -- isolation

    @in_loop
    async def test_no_network(self, make: Make) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        abstract = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"etude-test-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        code = (
            "import socket\n"
            "def reach(family, address):\n"
            "    s = socket.socket(family); s.settimeout(1)\n"
            "    try: s.connect(address); return 'reached'\n"
            "    except OSError as e: return type(e).__name__\n"
            f"print(reach(socket.AF_INET, ('127.0.0.1', {listener.getsockname()[1]})))\n"
            "print(reach(socket.AF_INET, ('1.1.1.1', 53)))\n"
            f"print(reach(socket.AF_UNIX, '\\0{name}'))\n"
            "try: print(socket.getaddrinfo('example.com', 80))\n"
            "except OSError: print('no names')\n"
        )
        with listener, abstract:
            async with a_box(make) as box:
                out = ok(await box.exec(["python", "-c", code], timeout=20))
        assert "reached" not in out
        assert "no names" in out

    @in_loop
    async def test_own_loopback_works(self, make: Make) -> None:
        code = (
            "import socket\nl = socket.create_server(('127.0.0.1', 0))\n"
            "c = socket.create_connection(l.getsockname()); s, _ = l.accept(); c.send(b'hi'); print(s.recv(2).decode())"
        )
        async with a_box(make) as box:
            assert ok(await box.exec(["python", "-c", code], timeout=10)) == "hi\n"

    @in_loop
    async def test_host_and_other_boxes_are_out_of_sight(self, make: Make, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("x")
        async with opened(make) as (sandboxes, image):
            box, other = [await sandboxes.create(BoxSpec(image)) for _ in range(2)]
            await other.write_file("/tmp/other", b"x")
            hidden = [str(secret), str(Path(__file__)), str(Path.home()), "/root", "/sys", "/etc/shadow", "/tmp/other"]
            hidden += ["/dev/mem", "/dev/kmsg", "/dev/tty", "/var/log", "/srv", "/proc/1/root/etc", "/proc/1/environ"]
            for path in hidden:
                assert (await box.exec(["ls", path] if path[-1] != "n" else ["cat", path], timeout=5)).code != 0, path
            pids = ok(await box.exec("ls /proc", timeout=5))
            assert sum(line.isdecimal() for line in pids.splitlines()) <= 4
            everything = ok(await box.exec("cat /proc/mounts /proc/self/mountinfo /proc/1/cmdline", timeout=5))
            assert str(Path(__file__).parent) not in everything

    @in_loop
    async def test_no_rights_over_the_kernel(self, make: Make) -> None:
        async with a_box(make) as box:
            tries = (
                "mount -t tmpfs x /tmp", "umount /proc", "unshare -Ur true", "unshare -n true", "chroot / true",
                "mknod /tmp/d b 8 0", "hostname x", "dmesg", "echo 1 >/proc/sys/kernel/sysrq",
                "echo b >/proc/sysrq-trigger",
                "touch /usr/x", "chown 0 /work", "date -s 12:00",
                "echo x >/proc/1/oom_score_adj", "cat /proc/1/mem", "echo 7 >/dev/new",
            )  # fmt: skip
            for command in tries:
                assert (await box.exec(command, timeout=5)).code != 0, command
            status = ok(await box.exec("cat /proc/self/status", timeout=5))
            assert "CapEff:\t0000000000000000" in status
            assert "NoNewPrivs:\t1" in status

    @in_loop
    async def test_pid_1_is_out_of_reach(self, make: Make) -> None:
        async with a_box(make) as box:
            await box.exec("kill -9 1; kill -INT 1; kill -TERM 1; kill -STOP 1; kill -SEGV 1; kill -9 -1", timeout=5)
            assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_loop
    async def test_second_user(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            if Feature.SECOND_USER not in sandboxes.features:
                with pytest.raises(RequestRefused):
                    await box.exec("true", timeout=5, user="grader")
                return
            secret = "umask 077; echo s >/tmp/s; cat /tmp/s; id -un"
            assert ok(await box.exec(secret, timeout=5, user="grader")) == "s\ngrader\n"
            assert (await box.exec("cat /tmp/s", timeout=5)).code != 0
            sleeper = asyncio.create_task(box.exec("sleep 1", timeout=5, user="grader"))
            await asyncio.sleep(0.2)
            await box.exec("kill -9 -1", timeout=5)
            assert (await sleeper).code == 0

    # -- files

    @in_loop
    async def test_files_in_and_out(self, make: Make) -> None:
        async with a_box(make) as box:
            assert await box.read_file("calc.py") == FILES["calc.py"]
            assert await box.list_files() == ["calc.py", "pkg/__init__.py", "run.sh"]
            data = bytes(range(256)) * 4000
            await box.write_file("a/b/c.bin", data)
            assert await box.read_file("/work/a/b/c.bin", max_bytes=len(data)) == data
            await box.write_file("a/b/c.bin", b"short")
            assert await box.read_file("a/b/../b/c.bin") == b"short"
            await box.write_file("tool", b"#!/bin/sh\necho tool\n", executable=True)
            assert ok(await box.exec(["./tool"], timeout=5)) == "tool\n"
            assert ok(await box.exec("echo more >>a/b/c.bin; stat -c %U a/b/c.bin", timeout=5)) == "agent\n"
            assert await box.list_files("a") == ["b/c.bin"]
            await box.exec("touch \"$(printf 'odd\\377 name')\"; ln -s /etc etc", timeout=5)
            assert "odd\udcff name" in await box.list_files()
            assert not any(name.startswith("etc/") for name in await box.list_files())

    @in_loop
    async def test_file_refusals(self, make: Make) -> None:
        async with a_box(make) as box:
            setup = "ln -s /etc/passwd out; ln -s .. up; mkfifo pipe; ln -s /proc/self/fd/0 fd; ln -s loop loop"
            await box.exec(setup, timeout=5)
            with pytest.raises(FileNotFoundError):
                await box.read_file("nothing")
            with pytest.raises(IsADirectoryError):
                await box.read_file("pkg")
            with pytest.raises(NotADirectoryError):
                await box.read_file("calc.py/x")
            for path in (
                "../etc/passwd",
                "out",
                "up/etc/passwd",
                "pipe",
                "fd",
                "loop",
                "",
                "a\0b",
                "/proc/self/status",
            ):
                with pytest.raises(RequestRefused):
                    await box.read_file(path)
            for path in ("../x", "out", "up/x", "pipe", "up/new/deep/x", "/dev/null"):
                with pytest.raises((RequestRefused, PermissionError)):
                    await box.write_file(path, b"x")
            with pytest.raises(RequestRefused):
                await box.read_file("calc.py", max_bytes=5)
            with pytest.raises((SandboxError, PermissionError)):
                await box.write_file("/usr/bin/env", b"x")
            with pytest.raises((FileNotFoundError, NotADirectoryError)):
                await box.list_files("nothing")
            assert await box.read_file("/etc/hostname")

    # -- images and forks

    @in_loop
    async def test_images_are_named_by_content(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            assert await sandboxes.add_image(dict(reversed(FILES.items()))) == image
            assert await sandboxes.add_image({**FILES, "x": b""}) != image
            assert await sandboxes.add_image(FILES, workdir="/home/agent/w") != image
            over = await sandboxes.add_image({"calc.py": b"new"}, base=image)
            box = await sandboxes.create(BoxSpec(over))
            assert await box.read_file("calc.py") == b"new"
            assert await box.read_file("run.sh") == FILES["run.sh"]
            await box.exec("rm -rf *", timeout=5)
            again = await sandboxes.create(BoxSpec(image))
            assert await again.list_files() == sorted(FILES)

    @in_loop
    async def test_snapshot_and_fork_see_the_same_files(self, make: Make) -> None:
        change = (
            "rm run.sh; mkdir -p d/e; echo new >d/e/f; ln d/e/f hard; ln -s d/e link; chmod 751 d; chmod 600 hard;"
            "rm -rf pkg; mkdir pkg; echo x >pkg/other; head -c 300000 /dev/urandom >blob;"
            "touch -d 2001-02-03 old; echo t >/tmp/t"
        )
        look = "find . /tmp -printf '%p %m %u %l %y\\n' | sort; find . -type f -exec md5sum {} + | sort; stat -c %Y old"
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            ok(await box.exec(change, timeout=5))
            expected = ok(await box.exec(look, timeout=5))
            children = await box.fork(3)
            saved = await sandboxes.create(BoxSpec(await box.snapshot()))
            grandchild = (await children[0].fork())[0]
            kept = await sandboxes.create(BoxSpec(await grandchild.snapshot()))
            for copy in (*children, saved, grandchild, kept):
                assert ok(await copy.exec(look, timeout=5)) == expected
            await children[0].exec("rm -rf *; echo mine >own", timeout=5)
            await box.destroy()
            await children[1].exec("ln hard harder && mv d/e d/moved || mv d/e/f d/", timeout=5)
            for copy in (children[2], saved, grandchild, kept):
                assert ok(await copy.exec(look, timeout=5)) == expected

    @in_loop
    async def test_same_snapshot_has_the_same_id(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            boxes = [await sandboxes.create(BoxSpec(image)) for _ in range(2)]
            for box in boxes:
                await box.write_file("same", b"same")
            first, second = [await box.snapshot() for box in boxes]
            assert first == second != image
            await boxes[0].write_file("same", b"other")
            assert await boxes[0].snapshot() != first

    @in_loop
    async def test_fork_of_a_box_being_written_to(self, make: Make) -> None:
        async with a_box(make) as box:
            writer = asyncio.create_task(box.exec("exec 3>held; echo part >&3; sleep 60", timeout=60))
            reader = asyncio.create_task(box.exec("exec 3<calc.py; sleep 0.6; echo read", timeout=60))
            await asyncio.sleep(0.2)
            with pytest.raises(BoxBusy, match="held"):
                await box.fork()
            with pytest.raises(BoxBusy, match="sh"):
                await box.snapshot()
            assert (await reader).stdout == b"read\n"
            (child,) = await box.fork(kill=True)
            assert (await writer).code == 137
            assert await child.read_file("held") == b"part\n"
            assert await processes_in(child) == []

    @in_loop
    async def test_processes_that_only_read_live_through_a_fork(self, make: Make) -> None:
        async with a_box(make) as box:
            running = asyncio.create_task(box.exec("sleep 0.5; echo lived", timeout=60))
            await asyncio.sleep(0.1)
            (child,) = await box.fork()
            assert await processes_in(child) == []
            assert (await running).stdout == b"lived\n"

    @in_loop
    async def test_requests_during_a_fork_wait_and_forks_may_overlap(self, make: Make) -> None:
        async with a_box(make, Limits()) as box:
            await box.write_file("blob", bytes(30 << 20))
            forks = [asyncio.create_task(box.fork()) for _ in range(3)]
            writes = [asyncio.create_task(box.write_file(f"w{n}", b"x" * 1000)) for n in range(20)]
            late = await box.exec("echo late >late; cat late", timeout=20)
            assert late.stdout == b"late\n"
            await asyncio.gather(*writes)
            for (child,) in await asyncio.gather(*forks):
                for name in await child.list_files():
                    assert len(await child.read_file(name, max_bytes=1 << 26)) > 0 or name == "pkg/__init__.py"
            assert len(await box.list_files()) == 3 + 1 + 20 + 1

    # -- ends

    @in_loop
    async def test_destroy_is_idempotent_and_final(self, make: Make) -> None:
        async with a_box(make) as box:
            running = asyncio.create_task(box.exec("sleep 60", timeout=60))
            await asyncio.sleep(0.1)
            await box.destroy()
            await box.destroy()
            with pytest.raises(SandboxLost):
                await running
            for request in (box.exec("true", timeout=5), box.read_file("calc.py"), box.fork(), box.snapshot()):
                with pytest.raises(SandboxLost):
                    await request

    @in_loop
    async def test_lost_when_its_first_process_is_killed(self, make: Make) -> None:
        before = {process.pid for process in psutil.Process().children(recursive=True)}
        async with opened(make) as (sandboxes, image):
            helpers = {process.pid for process in psutil.Process().children(recursive=True)} - before
            box = await sandboxes.create(BoxSpec(image))
            running = asyncio.create_task(box.exec("sleep 60", timeout=60))
            await asyncio.sleep(0.2)
            inside = [p for p in psutil.Process().children(recursive=True) if p.pid not in helpers | before]
            top = next(process for process in inside if process.ppid() in helpers | {os.getpid()})
            top.kill()
            with pytest.raises(SandboxLost):
                await running
            with pytest.raises(SandboxLost):
                await box.exec("true", timeout=5)
            fresh = await sandboxes.create(BoxSpec(image))
            assert ok(await fresh.exec("echo ok", timeout=5)) == "ok\n"

    @in_loop
    async def test_closed_backend_leaves_no_process_and_makes_no_box(self, make: Make) -> None:
        before = {process.pid for process in psutil.Process().children(recursive=True)}
        async with opened(make) as (sandboxes, image):
            boxes = await asyncio.gather(*(sandboxes.create(BoxSpec(image)) for _ in range(5)))
            runs = [asyncio.create_task(box.exec("sleep 60", timeout=60)) for box in boxes]
            await asyncio.sleep(0.1)
        await asyncio.gather(*runs, return_exceptions=True)
        await sandboxes.close()
        assert {process.pid for process in psutil.Process().children(recursive=True)} == before
        with pytest.raises(SandboxError):
            await sandboxes.create(BoxSpec(image))

    @in_loop
    async def test_many_boxes_in_a_row_and_at_once(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):

            async def one(number: int) -> str:
                box = await sandboxes.create(BoxSpec(image))
                await box.write_file("n", str(number).encode())
                out = ok(await box.exec("cat n", timeout=30))
                await box.destroy()
                return out

            await one(0)
            threads, numbers = threading.active_count(), psutil.Process().num_fds()
            children = len(psutil.Process().children(recursive=True))
            for number in range(200):
                assert await one(number) == str(number)
            assert await asyncio.gather(*(one(n) for n in range(50))) == [str(n) for n in range(50)]
            assert psutil.Process().num_fds() == numbers
            assert len(psutil.Process().children(recursive=True)) == children
            assert threading.active_count() <= threads + 1

    @in_loop
    async def test_full_disk_is_named(self, make: Make) -> None:
        async with a_box(make) as box:
            filled = await box.exec(
                "for i in 1 2 3 4 5 6; do head -c 3500000 /dev/zero >f$i || exit 1; done", timeout=10
            )
            if filled.code == 0:
                pytest.skip("this backend limits single files, not the sum")
            assert b"No space left" in filled.stderr
            names = [f"g{number}" for number in range(40)]
            outcomes = await asyncio.gather(*(box.write_file(n, bytes(1 << 20)) for n in names), return_exceptions=True)
            assert any(isinstance(outcome, DiskFull) for outcome in outcomes)
            assert ok(await box.exec("rm f1 f2; echo freed", timeout=5)) == "freed\n"
