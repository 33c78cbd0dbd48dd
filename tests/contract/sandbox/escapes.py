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
from tests.contract.sandbox.hostile import FILL_INODES, HIDING, INTERRUPT_80, MEMORY_BOMBS, SWAP, hostile_tars
from tests.contract.sandbox.support import PATIENCE, Make, a_box, in_loop, ok, opened

from etude.sandbox import Box, BoxSpec, Feature, Limits, RequestRefused, SandboxError, Sandboxes
from etude.sandbox.inside import seccomp

MACHINE = platform.machine()
CALLS = json.loads(Path(seccomp.__file__).with_name("seccomp.json").read_text())["numbers"][MACHINE]
ATTACKS = Path(__file__).with_name("attacks.py").read_text()
LARGE = Limits(memory_mb=96, processes=40, cpu_seconds=20, file_mb=64, disk_mb=32)


async def attack(box: Box, name: str, *arguments: str, user: str = "", timeout: float = 20) -> str:
    """Run an attack of attacks.py in the box, check that it achieved nothing, and return its output."""
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
    # -- the host's files

    @in_loop
    async def test_no_way_to_the_hosts_files(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "marker-of-the-host").write_text("x")
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            places = [str(tmp_path), str(Path(__file__)), str(Path.home()), "/root", "/etc/shadow", "/var/lib", "/srv"]
            await attack_as_all(sandboxes, box, "host_files", *places)

    @in_loop
    async def test_system_folders_cannot_be_changed(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            before = Path("/usr/bin/env").stat()
            await attack_as_all(sandboxes, box, "system_folders")
            assert Path("/usr/bin/env").stat() == before

    @in_loop
    async def test_links_do_not_lead_file_requests_out(self, make: Make) -> None:
        async with a_box(make) as box:
            await box.exec("mkdir -p ~/o && echo outside >~/o/f; ln -s ~/o abs; mkdir d", timeout=5)
            await box.exec("ln -s ../../../home up", timeout=5)
            await box.exec("ln -s /proc/1/root root; ln -s /proc/self/cwd/.. magic; ln -s ../x d/x", timeout=5)
            for path in ("abs/f", "up/agent/o/f", "root/etc/hostname", "magic/etc/hostname", "d/../../etc/hostname"):
                with pytest.raises((RequestRefused, OSError)):
                    await box.read_file(path)
                with pytest.raises((RequestRefused, OSError)):
                    await box.write_file(path, b"in")
            with pytest.raises((RequestRefused, OSError)):
                await box.list_files("abs")
            assert ok(await box.exec("cat ~/o/f", timeout=5)) == "outside\n"

    @in_loop
    async def test_links_swapped_during_a_request_do_not_lead_out(self, make: Make) -> None:
        async with a_box(make, LARGE) as box:
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

    @in_loop
    async def test_tars_that_break_out_are_refused_whole(self, make: Make) -> None:
        async with a_box(make) as box:
            for name, tar in hostile_tars().items():
                with pytest.raises((RequestRefused, SandboxError)):
                    await box.write_tree("into", tar, max_bytes=1 << 20, max_files=100)
                left = await box.exec("ls -A into; ls -A /tmp ~ | grep evil", timeout=5)
                assert b"evil" not in left.stdout, name

    @in_loop
    async def test_a_tree_that_is_too_large_is_not_read(self, make: Make) -> None:
        async with a_box(make, LARGE) as box:
            await box.exec("mkdir many sparse; cd many; seq 300 | xargs touch; truncate -s 60M ../sparse/f", timeout=5)
            with pytest.raises(RequestRefused):
                await box.read_tree("many", max_files=200)
            with pytest.raises(RequestRefused):
                await box.read_tree("sparse", max_bytes=1 << 20)

    # -- /proc and /sys

    @in_loop
    async def test_kernel_settings_cannot_be_written(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "kernel_settings")

    @in_loop
    async def test_kernel_secrets_cannot_be_read(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "kernel_secrets")

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

    @in_loop
    async def test_pid_1_cannot_be_opened_or_traced(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "pid_1")
            assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_loop
    async def test_no_signal_reaches_pid_1(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            for user in ["agent", *(["root"] if Feature.ROOT_USER in sandboxes.features else [])]:
                shower = "import os\nfor n in range(1, 65):\n try: os.kill(1, n)\n except OSError: pass\nprint('sent')"
                assert ok(await box.exec(["python", "-c", shower], timeout=10, user=user)) == "sent\n"
            assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_loop
    async def test_another_users_processes_are_out_of_reach(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            if Feature.SECOND_USER not in sandboxes.features:
                pytest.skip("this backend has one user per box")
            box = await sandboxes.create(BoxSpec(image))
            secret = asyncio.create_task(
                box.exec("echo $$ >/tmp/pid; sleep 60", timeout=60, user="grader", env={"SECRET": "of-the-grader"})
            )
            ok(await box.exec("until test -s /tmp/pid; do sleep 0.01; done", timeout=10))
            await attack(box, "other_user", "of-the-grader")
            secret.cancel()

    # -- mounts and namespaces

    @in_loop
    async def test_nothing_can_be_mounted(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "mounting")

    @in_loop
    async def test_nothing_can_be_unmounted_to_see_what_it_covers(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "unmounting")

    @in_loop
    async def test_no_new_namespace_can_be_made(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "new_namespaces")

    @in_loop
    async def test_no_other_namespace_can_be_entered(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "entering_namespaces")

    @in_loop
    async def test_chroot_does_not_lead_above_the_root(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "chroot")

    # -- rights

    @in_loop
    async def test_set_uid_programs_have_no_effect(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            if Feature.ROOT_USER in sandboxes.features:
                await box.exec("cp /usr/bin/id /tmp/as-root; chmod 6755 /tmp/as-root", timeout=5, user="root")
            await attack(box, "set_uid")

    @in_loop
    async def test_commands_hold_no_right_over_the_host(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            status = ok(await box.exec("cat /proc/self/status", timeout=5))
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapAmb"], 16) == 0
            assert fields["NoNewPrivs"] == "1"
            assert fields["Seccomp"] == "2"
            if Feature.ROOT_USER in sandboxes.features:
                status = ok(await box.exec("grep CapEff /proc/self/status", timeout=5, user="root"))
                assert int(status.split()[1], 16) & ~_DOCKERS_CAPABILITIES == 0

    @in_loop
    async def test_devices_cannot_be_made_or_opened(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "devices")

    @in_loop
    async def test_no_terminal_of_the_host(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "terminal")

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
    async def test_no_way_to_the_network(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "network")

    @in_loop
    async def test_sockets_below_and_beside_ip_are_refused(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "odd_sockets")

    @in_loop
    async def test_the_network_of_the_box_cannot_be_changed(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "netlink")

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

    @in_loop
    async def test_a_box_learns_nothing_of_other_boxes(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            boxes = [await sandboxes.create(BoxSpec(image)) for _ in range(3)]
            await boxes[0].exec("echo of another >/tmp/marker; echo x >/dev/shm/marker", timeout=5)
            looks = [await attack(box, "neighbours") for box in boxes[1:]]
            assert looks[0] == looks[1]

    # -- the kernel's surface

    @in_loop
    async def test_dangerous_system_calls_are_refused(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image))
            await attack_as_all(sandboxes, box, "system_calls")

    @pytest.mark.skipif(MACHINE != "x86_64", reason="other calling conventions exist on x86_64 only")
    @in_loop
    async def test_other_calling_conventions_are_refused(self, make: Make) -> None:
        async with a_box(make) as box:
            await attack(box, "x32")
            by_interrupt = await box.exec(["python", "-c", INTERRUPT_80], timeout=10)
            assert by_interrupt.code == 128 + 31, by_interrupt

    # -- filling up

    @in_loop
    async def test_a_memory_bomb_of_any_kind_ends_and_the_box_lives(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            box = await sandboxes.create(BoxSpec(image, limits=LARGE))
            # Without a limit on the disk, the bomb in /tmp would fill the host's disk.
            for bomb in ["anonymous", "children", "shared"] + ["tmpfs"] * (Feature.DISK_LIMIT in sandboxes.features):
                ended = await box.exec(["python", "-c", MEMORY_BOMBS[bomb]], timeout=PATIENCE)
                assert ended.code != 0, (bomb, ended)
                assert not ended.timed_out, (bomb, ended)
                assert ok(await box.exec("rm -rf /tmp/bomb; echo alive", timeout=10)) == "alive\n", bomb

    @in_loop
    async def test_inodes_run_out_for_the_box_alone(self, make: Make) -> None:
        async with opened(make) as (sandboxes, image):
            if Feature.DISK_LIMIT not in sandboxes.features:
                pytest.skip("this backend limits single files, not their sum")
            box, other = [await sandboxes.create(BoxSpec(image, limits=LARGE)) for _ in range(2)]
            filled = await box.exec(["python", "-c", FILL_INODES], timeout=60)
            assert b"No space left" in filled.stdout, filled
            assert ok(await other.exec("touch here; echo fine", timeout=5)) == "fine\n"
            assert ok(await box.exec("rm -rf bomb; touch here; echo alive", timeout=60)) == "alive\n"

    @in_loop
    async def test_descriptors_and_terminals_run_out_for_the_command_alone(self, make: Make) -> None:
        async with a_box(make, LARGE) as box:
            for path in ("/dev/null", "/dev/ptmx"):
                greedy = f"import os\nkept = []\ntry:\n  while True: kept.append(os.open({path!r}, os.O_RDWR))\n"
                greedy += "except OSError as e: print(len(kept) < 5000)"
                assert ok(await box.exec(["python", "-c", greedy], timeout=20)) == "True\n"
            assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    # -- hiding from the end

    @in_loop
    async def test_nobody_hides_from_the_end_of_a_command(self, make: Make) -> None:
        ways = ["daemon", "nameless", "unreadable", "stopped", "subreaper", "vfork", "leaderless", "respawning"]
        async with a_box(make, LARGE) as box:
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
