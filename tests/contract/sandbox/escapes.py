"""Escapes from a box: each is tried from inside, as every user that the box has, and must fail.

An attack is a Python program that runs in the box. It prints BREACH for what it achieved and DONE at its end, so that
an attack that crashed does not count as prevented.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import socket
from pathlib import Path

import pytest
from tests.contract.sandbox.hostile import FILL_INODES, HIDING, INTERRUPT_80, MEMORY_BOMBS, SWAP
from tests.contract.sandbox.support import PATIENCE, Make, in_a_box, in_loop, ok, opened

from etude.sandbox import Box, BoxSpec, Feature, Limits, RequestRefused, Sandboxes
from etude.sandbox.inside import seccomp

MACHINE = platform.machine()
CALLS = json.loads(Path(seccomp.__file__).with_name("seccomp.json").read_text())["numbers"][MACHINE]
ATTACKS = Path(__file__).with_name("attacks.py").read_text()
LARGE = Limits(memory_mb=96, processes=40, cpu_seconds=20, file_mb=64, disk_mb=32)


async def attack(box: Box, name: str, *arguments: str, user: str = "", timeout: float = PATIENCE) -> str:
    """Runs one of attacks.py in the box; returns what it said."""
    command = ["python", "-B", "-c", ATTACKS, json.dumps(CALLS), name, *arguments]
    result = await box.exec(command, timeout=timeout, user=user)
    said = result.stdout.decode("utf-8", "replace")
    assert said.endswith("DONE\n"), result
    assert "BREACH" not in said, said
    return said


async def attack_as_all(sandboxes: Sandboxes, box: Box, name: str, *arguments: str) -> None:
    for user in ["agent", *(["root"] if Feature.ROOT_USER in sandboxes.features else [])]:
        await attack(box, name, *arguments, user=user)


class EscapeCases:
    attacks: tuple[str, ...] = (
        *("system_folders", "kernel_settings", "kernel_secrets", "pid_1"),
        *("mounting", "unmounting", "new_namespaces", "entering_namespaces", "chroot"),
        *("devices", "terminal", "network", "odd_sockets", "netlink", "system_calls"),
    )
    """Those that need nothing prepared. Fewer where a mode promises less."""

    @in_loop
    async def test_no_attack_gets_anywhere(self, make: Make) -> None:
        env = Path("/usr/bin/env")
        before = env.stat().st_ctime_ns
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            for name in self.attacks:
                await attack_as_all(sandboxes, box, name)
            assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"
        assert env.stat().st_ctime_ns == before

    # -- the host's files

    @in_a_box(Limits())
    async def test_no_way_to_the_hosts_files(self, sandboxes: Sandboxes, box: Box, tmp_path: Path) -> None:
        (tmp_path / "marker-of-the-host").write_text("x")
        places = [
            str(tmp_path),
            str(Path(__file__)),
            str(Path.home()),
            "/root",
            "/etc/shadow",
            "/var/lib",
            "/srv",
            "/sys",
        ]
        await attack_as_all(sandboxes, box, "host_files", *places)
        assert ok(await box.exec("ls -A /var/log", timeout=5)) == ""

    @in_a_box(LARGE)
    async def test_links_swapped_during_a_request_do_not_lead_out(self, box: Box) -> None:
        await box.exec("mkdir in ~/out; echo inside >in/f; echo outside >~/out/f", timeout=5)
        swapping = asyncio.create_task(box.exec(["python", "-c", SWAP], timeout=4))
        seen = set()
        while not swapping.done():
            try:
                seen.add(await box.read_file("in/f"))
                await box.write_file("in/g", b"x")
            except (RequestRefused, OSError):
                seen.add(b"refused")
        assert seen - {b"refused"} == {b"inside\n"}
        assert (await box.exec("ls ~/out/g", timeout=5)).code != 0

    # -- /proc and /sys

    @in_loop
    async def test_no_process_of_the_host_is_seen(self, make: Make) -> None:
        sleeper = await asyncio.create_subprocess_exec("sleep", "97.0625", env={"MARKER_OF_THE_HOST": "x"})
        try:
            async with opened(make) as (sandboxes, image):
                box, _ = [await sandboxes.create(BoxSpec(image)) for _ in range(2)]
                await attack_as_all(sandboxes, box, "processes", "MARKER_OF_THE_HOST", "97.0625")
        finally:
            sleeper.kill()
            await sleeper.wait()

    @in_a_box(Limits())
    async def test_no_signal_reaches_pid_1(self, sandboxes: Sandboxes, box: Box) -> None:
        for user in ["agent", *(["root"] if Feature.ROOT_USER in sandboxes.features else [])]:
            shower = "import os\nfor n in range(1, 65):\n try: os.kill(1, n)\n except OSError: pass\nprint('sent')"
            assert ok(await box.exec(["python", "-c", shower], timeout=10, user=user)) == "sent\n"
            await box.exec("kill -9 -1", timeout=5, user=user)
        assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_a_box()
    async def test_another_users_processes_are_out_of_reach(self, sandboxes: Sandboxes, image: str) -> None:
        if Feature.SECOND_USER not in sandboxes.features:
            pytest.skip("this backend has one user per box")
        box = await sandboxes.create(BoxSpec(image))
        secret = asyncio.create_task(
            box.exec("echo $$ >/tmp/pid; sleep 60", timeout=60, user="grader", env={"SECRET": "of-the-grader"})
        )
        ok(await box.exec("until test -s /tmp/pid; do sleep 0.01; done", timeout=10))
        await attack(box, "other_user", "of-the-grader")
        secret.cancel()

    # -- rights

    @in_a_box(Limits())
    async def test_set_uid_programs_have_no_effect(self, sandboxes: Sandboxes, box: Box) -> None:
        if Feature.ROOT_USER in sandboxes.features:
            await box.exec("cp /usr/bin/id /tmp/as-root; chmod 6755 /tmp/as-root", timeout=5, user="root")
        await attack(box, "set_uid")

    @in_a_box(Limits())
    async def test_commands_hold_no_right_over_the_host(self, sandboxes: Sandboxes, box: Box) -> None:
        status = ok(await box.exec("cat /proc/self/status", timeout=5))
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapAmb"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        assert fields["Seccomp"] == "2"
        if Feature.ROOT_USER in sandboxes.features:
            status = ok(await box.exec("grep CapEff /proc/self/status", timeout=5, user="root"))
            assert int(status.split()[1], 16) & ~_DOCKERS_CAPABILITIES == 0

    # -- network and other ways to talk

    @in_loop
    async def test_services_of_the_host_are_out_of_reach(self, make: Make, tmp_path: Path) -> None:
        listeners = [socket.create_server(("127.0.0.1", 0))]
        if socket.has_dualstack_ipv6():
            listeners.append(socket.create_server(("::1", 0), family=socket.AF_INET6))
        abstract = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        abstract.bind(f"\0etude-escape-{os.getpid()}")
        named = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        named.bind(str(tmp_path / "s"))
        for listener in (abstract, named):
            listener.listen()
        names = [f"\0etude-escape-{os.getpid()}", str(tmp_path / "s")]
        addresses = [[int(listener.family), *listener.getsockname()[:2]] for listener in listeners]
        addresses += [[int(socket.AF_UNIX), name] for name in names]
        try:
            async with opened(make) as (sandboxes, image):
                box = await sandboxes.create(BoxSpec(image))
                await attack_as_all(sandboxes, box, "services", *map(json.dumps, addresses))
        finally:
            for listener in (*listeners, abstract, named):
                listener.close()

    @in_loop
    async def test_shared_memory_of_the_host_is_out_of_sight(self, make: Make) -> None:
        libc, key = ctypes.CDLL(None, use_errno=True), 0x0E000000 + os.getpid()
        segment = libc.shmget(key, 4096, 0o1666)
        try:
            async with opened(make) as (sandboxes, image):
                box = await sandboxes.create(BoxSpec(image))
                await attack_as_all(sandboxes, box, "shared_memory", str(key))
        finally:
            libc.shmctl(segment, 0, None)

    @in_a_box()
    async def test_a_box_learns_nothing_of_other_boxes(self, sandboxes: Sandboxes, image: str) -> None:
        boxes = [await sandboxes.create(BoxSpec(image)) for _ in range(3)]
        await boxes[0].exec("echo of another >/tmp/marker; echo x >/dev/shm/marker", timeout=5)
        looks = [await attack(box, "neighbours") for box in boxes[1:]]
        assert looks[0] == looks[1]
        shown = ok(await boxes[1].exec("cat /proc/mounts /proc/self/mountinfo /proc/1/cmdline", timeout=5))
        assert str(Path(__file__).parent) not in shown

    # -- the kernel's surface

    @pytest.mark.skipif(MACHINE != "x86_64", reason="other calling conventions exist on x86_64 only")
    @in_a_box()
    async def test_other_calling_conventions_are_refused(self, box: Box) -> None:
        await attack(box, "x32")
        by_interrupt = await box.exec(["python", "-c", INTERRUPT_80], timeout=10)
        assert by_interrupt.code == 128 + 31, by_interrupt

    # -- filling up

    @in_a_box()
    async def test_memory_that_is_shared_or_in_files_is_limited_too(self, sandboxes: Sandboxes, image: str) -> None:
        box = await sandboxes.create(BoxSpec(image, limits=LARGE))
        # Where files are not limited together, they would fill the host's disk.
        for bomb in ["shared"] + ["tmpfs"] * (Feature.DISK_LIMIT in sandboxes.features):
            ended = await box.exec(["python", "-c", MEMORY_BOMBS[bomb]], timeout=PATIENCE)
            assert ended.code != 0, (bomb, ended)
            assert not ended.timed_out, (bomb, ended)
            assert ok(await box.exec("rm -rf /tmp/bomb; echo alive", timeout=10)) == "alive\n", bomb

    @in_a_box()
    async def test_inodes_run_out_for_the_box_alone(self, sandboxes: Sandboxes, image: str) -> None:
        if Feature.DISK_LIMIT not in sandboxes.features:
            pytest.skip("this backend limits single files, not their sum")
        box, other = [await sandboxes.create(BoxSpec(image, limits=LARGE)) for _ in range(2)]
        filled = await box.exec(["python", "-c", FILL_INODES], timeout=60)
        assert b"No space left" in filled.stdout, filled
        assert ok(await other.exec("touch here; echo fine", timeout=5)) == "fine\n"
        assert ok(await box.exec("rm -rf bomb; touch here; echo alive", timeout=60)) == "alive\n"

    @in_a_box(LARGE)
    async def test_descriptors_and_terminals_run_out_for_the_command_alone(self, box: Box) -> None:
        for path in ("/dev/null", "/dev/ptmx"):
            greedy = f"import os\nkept = []\ntry:\n  while True: kept.append(os.open({path!r}, os.O_RDWR))\n"
            greedy += "except OSError as e: print(len(kept) < 5000)"
            assert ok(await box.exec(["python", "-c", greedy], timeout=20)) == "True\n"
        assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    # -- hiding from the end

    @in_a_box(LARGE)
    async def test_nobody_hides_from_the_end_of_a_command(self, box: Box) -> None:
        ways = ["daemon", "nameless", "unreadable", "stopped", "subreaper", "vfork", "leaderless", "respawning"]
        ok(await box.exec("mkfifo /tmp/go", timeout=5))
        sentinel = asyncio.create_task(box.exec("echo $$ >/tmp/pid; read go </tmp/go; echo spared", timeout=60))
        at_rest = "grep -q ') S' /proc/$(cat /tmp/pid)/stat"
        ok(await box.exec(f"until test -s /tmp/pid && {at_rest}; do sleep 0.01; done", timeout=30))
        before = await processes_of(box)
        ends = await asyncio.gather(*(box.exec(["python", "-c", HIDING, way], timeout=1.0) for way in ways))
        assert all(end.seconds < PATIENCE for end in ends), ends
        after = await processes_of(box)
        assert after == before, (before, after)
        ok(await box.exec("echo >/tmp/go", timeout=5))
        assert (await sentinel).stdout == b"spared\n"


async def processes_of(box: Box) -> list[str]:
    """Names and states of the box's processes, including the one that lists them. The state of pid 1 may vary."""
    look = (
        "for p in /proc/[0-9]*; do read -r pid name state rest <$p/stat && "
        '[ $pid != 1 ] && echo "$name $state"; done 2>/dev/null; true'
    )
    return sorted(ok(await box.exec(look, timeout=5)).splitlines())


_DOCKERS_CAPABILITIES = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))
