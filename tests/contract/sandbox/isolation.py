"""Isolation: no network, no access to the host or to other boxes, no privileges, no way to pid 1."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.contract.sandbox.support import Make, a_box, in_loop, ok, opened, under_way

from etude.sandbox import (
    BoxSpec,
    Feature,
    RequestRefused,
)


class IsolationCases:
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
            hidden += ["/dev/mem", "/dev/kmsg", "/var/lib", "/srv", "/proc/1/root/etc", "/proc/1/environ"]
            for path in hidden:
                assert (await box.exec(["ls", path] if path[-1] != "n" else ["cat", path], timeout=5)).code != 0, path
            assert (await box.exec(["cat", "/dev/tty"], timeout=5)).code != 0, "the command has a terminal"
            assert (await box.exec(["ls", "-A", "/var/log"], timeout=5)).stdout == b""
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
            sleeper = await under_way(box, "until test -e /tmp/go; do sleep 0.02; done", user="grader")
            await box.exec("kill -9 -1", timeout=5)
            ok(await box.exec("touch /tmp/go", timeout=5))
            assert (await sleeper).code == 0
