"""Limits of a box that the kernel holds by cgroups: found by trying, and gone with their owner."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.contract.sandbox.support import in_loop, output_until
from tests.sandbox.as_nobody import for_root, run_as_nobody

from etude.sandbox import Box, BoxSpec, EmbeddedSandboxes, Feature, Limits, SandboxError
from etude.sandbox.embedded.cgroups import BoxCgroup, Cgroups, Hierarchy, find_hierarchies
from etude.sandbox.embedded.cgroups.files import V2, set_limits
from etude.sandbox.embedded.cgroups.finding import own_cgroup, read_mounts
from etude.sandbox.embedded.cgroups.owners import PREFIX, locked_folder, remove_dead
from etude.sandbox.inside.memory import CgroupMemory

HAVE = bool(find_hierarchies())
needs_cgroups = pytest.mark.skipif(not HAVE, reason="this user gets no cgroups here; `etude sandbox doctor` says why")

HYBRID = """\
24 1 0:22 / /proc rw - proc proc rw
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /box /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
34 30 0:30 /user.slice /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
"""


def folders() -> set[Path]:
    """Of this process: also those of backends that tests before have left open."""
    return {path for hierarchy in find_hierarchies() for path in hierarchy.parent.glob(f"{PREFIX}{os.getpid()}-*")}


def test_mounts_are_read_as_the_kernel_writes_them() -> None:
    mounts = read_mounts(HYBRID)
    assert [(mount.version, str(mount.point), sorted(mount.controllers)) for mount in mounts] == [
        (1, "/sys/fs/cgroup/cpu,cpuacct", ["cpu"]),
        (1, "/sys/fs/cgroup/mem ory", ["memory"]),
        (1, "/sys/fs/cgroup/systemd", []),
        (2, "/sys/fs/cgroup/unified", []),
    ]
    own = own_cgroup(mounts[3], "4:memory:/x\n0::/user.slice/user-1000.slice/a.scope\n")
    assert own == Path("/sys/fs/cgroup/unified/user-1000.slice/a.scope")
    assert own_cgroup(mounts[3], "0::/system.slice/x\n") is None, "the mount does not show it"


def test_version_2_is_set_by_its_own_names(tmp_path: Path) -> None:
    """The kernel's folders cannot be had everywhere; here plain files take what is written."""
    for name in ("memory.max", "pids.max", "cgroup.procs"):
        (tmp_path / name).touch()
    (tmp_path / V2.events).write_text("low 0\nhigh 0\nmax 5\noom 2\noom_kill 0\n")
    (tmp_path / V2.usage).write_text("4096\n")
    hierarchy = Hierarchy(2, tmp_path, frozenset({"memory", "pids"}))
    set_limits(hierarchy, tmp_path, 5 << 20, 7)
    assert (tmp_path / "memory.max").read_text() == str(5 << 20)
    assert (tmp_path / "pids.max").read_text() == "7"
    box = BoxCgroup([(hierarchy, tmp_path)])
    (tmp_path / "memory.stat").write_text("anon 4096\nfile 90000\nfile_mapped 8192\nshmem 50000\n")
    with box.open_entry_files() as (_, *files):
        memory = CgroupMemory((files[0], files[1]))
        assert memory.process_bytes() == 4096 + 8192
        assert not memory.oom_killed()
        (tmp_path / V2.events).write_text("oom 3\noom_kill 1\n")
        assert memory.oom_killed()
        assert not memory.oom_killed(), "asked once, told once"
    assert box.memory_bytes() == 4096


@pytest.mark.parametrize(("version", "limited"), [(1, False), (2, True)])
def test_buffers_have_the_limits_that_the_kernel_has(tmp_path: Path, version: int, limited: bool) -> None:
    """The file with their limit in version 1 is missing here, as in some kernels."""
    cgroups = Cgroups([Hierarchy(version, tmp_path, frozenset({"memory"}))])
    assert (cgroups.limits_buffers, cgroups.buffers_apart) == (limited, False)
    cgroups.close()


@pytest.mark.parametrize("before", ["open", "flock"])
def test_a_janitor_may_come_before_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Of another process: what has no lock yet looks like a dead owner's."""
    module = {"open": os, "flock": fcntl}[before]
    step, removed = getattr(module, before), []

    def hurried(*args: Any) -> Any:
        monkeypatch.setattr(module, before, step)
        removed.extend(remove_dead(tmp_path))
        return step(*args)

    monkeypatch.setattr(module, before, hurried)
    folder, lock = locked_folder(tmp_path)
    assert [tmp_path / name for name in removed] != [folder]
    assert len(removed) == 1
    assert remove_dead(tmp_path) == [], "it is locked"
    os.close(lock)
    assert remove_dead(tmp_path) == [folder.name]


@needs_cgroups
def test_folders_come_and_go_with_their_owner() -> None:
    before = folders()
    ours = Cgroups.find()
    assert ours is not None
    box = ours.create("one", memory_bytes=64 << 20, processes=9)
    with pytest.raises(SandboxError, match="one"):
        ours.create("one", memory_bytes=64 << 20, processes=9)
    enter = [sys.executable, "-c", "import os, sys; [os.write(int(n), b'0') for n in sys.argv[1:]]; input()"]
    with box.open_entry_files() as given:
        doors = given[:-2] if box.limits_memory else given
        inside = subprocess.Popen([*enter, *map(str, doors)], pass_fds=doors, stdin=subprocess.PIPE)
    with inside:
        while not all(
            f"/{path.parent.name}/one" in Path(f"/proc/{inside.pid}/cgroup").read_text() for _, path in box._folders
        ):
            assert inside.poll() is None
        assert box.memory_bytes() is not None
        another = Cgroups.find()
        assert another is not None
        another.close()
        assert len(folders() - before) == len(box._folders), "a janitor spares who lives"
        inside.communicate(b"\n")
    box.remove()
    box.remove()
    ours.close()
    assert folders() <= before


@needs_cgroups
def test_what_a_killed_owner_left_is_removed_by_the_next() -> None:
    program = (
        "from etude.sandbox.embedded.cgroups import Cgroups; import os\n"
        "Cgroups.find().create('x', memory_bytes=1 << 26, processes=9); print(os.getpid(), flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        name = f"{PREFIX}{int(owner.stdout.readline())}-*"
        places = [hierarchy.parent for hierarchy in find_hierarchies()]
        for place in places:
            remove_dead(place)  # Other tests beside this one leave dead ones, too.
        assert all(list(place.glob(f"{name}/x")) for place in places)
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
    found = Cgroups.find()
    assert found is not None
    assert not any(list(place.glob(name)) for place in places)
    found.close()


HOARD = (
    "import os\nkept = []\n"
    "for _ in range(200):\n kept.append(os.memfd_create('x'))\n os.write(kept[-1], bytes(2 << 20))\n"
)
"""Memory that no process maps: who asks the processes does not see it."""


def with_boxes(limits: Limits, *, cgroups: bool = True) -> Callable[..., Callable[..., None]]:
    """Gives a test boxes of one backend, `box` and perhaps `other`, and looks that no cgroup is left of them."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        parameters = dict(inspect.signature(test).parameters)
        names = [name for name in ("box", "other") if parameters.pop(name, None)]

        @functools.wraps(test)
        def run(tmp_path: Path, **more: Any) -> None:
            async def whole() -> None:
                sandboxes = EmbeddedSandboxes(tmp_path)
                if not cgroups and sandboxes.cgroups is not None:
                    sandboxes.cgroups.close()
                    sandboxes.cgroups = None
                try:
                    made = {name: await sandboxes.create(BoxSpec("host", limits=limits)) for name in names}
                    await test(**made, **more)
                finally:
                    await sandboxes.close()

            before = folders()
            asyncio.run(whole())
            assert folders() <= before

        asked = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([asked, *parameters.values()])  # type: ignore[attr-defined]
        return run

    return decorate


@needs_cgroups
@with_boxes(Limits(memory_mb=64, disk_mb=16))
async def test_memory_that_no_process_maps_counts(box: Box, other: Box) -> None:
    for _ in range(2):
        ended = await box.exec(["python", "-c", HOARD], timeout=20)
        assert (ended.code, ended.limit) == (137, "memory"), ended
    by_itself = await box.exec("kill -9 $$", timeout=5)
    assert (by_itself.code, by_itself.limit) == (137, ""), "not every SIGKILL is for memory"
    assert (await other.exec("true", timeout=5)).code == 0


@needs_cgroups
@with_boxes(Limits(memory_mb=32, disk_mb=60, file_mb=100))
async def test_a_box_is_lost_only_when_someone_ends_it(box: Box) -> None:
    """The kernel picks a command and not pid 1, even one that is smaller than pid 1; and when every file in memory is
    full, there is still room for pid 1."""
    fill = "dd if=/dev/zero of=/dev/shm/a bs=1M; for i in 1 2 3; do dd if=/dev/zero of=/tmp/$i bs=1M count=19; done"
    await box.exec(fill, timeout=20)
    for _ in range(3):
        ended = await box.exec(["python", "-c", HOARD], timeout=20)
        assert (ended.code, ended.limit) == (137, "memory"), ended
    await box.exec("rm -f /dev/shm/a /tmp/*", timeout=20)
    assert (await box.exec("echo alive", timeout=5)).stdout == b"alive\n"


@needs_cgroups
@with_boxes(Limits(memory_mb=32, disk_mb=64))
async def test_what_forks_have_sealed_does_not_count(box: Box) -> None:
    """A fork starts a new account of the disk; so it must of memory, where what boxes write is in memory."""
    for turn in range(6):
        wrote = await box.exec(f"dd if=/dev/zero of=/tmp/{turn} bs=1M count=50", timeout=20)
        assert (wrote.code, wrote.limit) == (0, ""), (turn, wrote)
        for child in await box.fork():
            await child.destroy()
    ended = await box.exec(["python", "-c", HOARD], timeout=20)
    assert (ended.code, ended.limit) == (137, "memory"), "and the limit still holds"


@needs_cgroups
@with_boxes(Limits(memory_mb=64, disk_mb=16))
async def test_stats_count_what_no_process_maps(box: Box, other: Box) -> None:
    hold = "import os\none = os.memfd_create('x')\nos.write(one, bytes(30 << 20))\nprint('held', flush=True)\ninput()"
    holder = await box.start(["python", "-c", hold], timeout=60)
    await output_until(holder, b"held")
    assert 30 << 20 <= (await box.stats()).memory_bytes < 60 << 20
    assert (await other.stats()).memory_bytes < 20 << 20


@needs_cgroups
@pytest.mark.slow
@with_boxes(Limits(processes=100, cpu_seconds=60))
async def test_boxes_share_the_cores_evenly(box: Box, other: Box) -> None:
    """Not their processes: one with many gets no more than one with few."""
    if "cpu" not in {name for hierarchy in find_hierarchies() for name in hierarchy.controllers}:
        pytest.skip("no cgroup of CPU time")
    cores = len(os.sched_getaffinity(0))
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nwhile os.path.exists('go'): pass"
    for each, count in ((box, cores), (other, 5 * cores)):
        for _ in range(count):
            await each.start(["python", "-c", code], timeout=60)
    for each in (box, other):
        await each.write_file("go", b"")
    before = [(await each.stats()).cpu_seconds for each in (box, other)]
    await asyncio.sleep(4)
    after = [(await each.stats()).cpu_seconds for each in (box, other)]
    used = [now - then for now, then in zip(after, before, strict=True)]
    assert 0.5 < used[0] / used[1] < 2, used


MANY_USERS = """
import os, time
made = 0
for uid in range(2000, 2010):
    for _ in range(10):
        try:
            if os.fork() == 0:
                os.setuid(uid)
                time.sleep(20)
                os._exit(0)
            made += 1
        except OSError:
            pass
print(made)
"""


@pytest.mark.parametrize("held_by", [pytest.param("cgroup", marks=needs_cgroups), "kernel"])
@in_loop
async def test_all_users_of_a_box_share_its_processes(sandboxes: EmbeddedSandboxes, held_by: str) -> None:
    """Without cgroups, the kernel counts them in the box's user namespace."""
    if Feature.ROOT_USER not in sandboxes.features:
        pytest.skip("boxes have one user")
    if held_by == "kernel" and sandboxes.cgroups is not None:
        sandboxes.cgroups.close()
        sandboxes.cgroups = None
    limits = Limits(processes=12)
    boxes = [await sandboxes.create(BoxSpec("host", limits=limits)) for _ in range(3)]
    tries = [box.exec(["python", "-c", MANY_USERS], timeout=10, user="root") for box in boxes]
    made = [int(result.stdout) for result in await asyncio.gather(*tries)]
    assert all(8 <= count <= 12 for count in made), f"each box has its own: {made}"


UNREAD = """
import socket, struct, sys
kept, held, kind = [], 0, sys.argv[1]
def waiting(receiver):
    return struct.unpack("=I", receiver.getsockopt(socket.SOL_SOCKET, 55, 36)[:4])[0]
for _ in range(int(sys.argv[2])):
    if kind == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        sender = socket.create_connection(listener.getsockname())
        receiver = listener.accept()[0]
        kept += [listener, sender]
    else:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    kept.append(receiver)
    sender.setblocking(False)
    try:
        for _ in range(200):
            size = sender.send(bytes(50_000)) if kind == "tcp" else sender.sendto(bytes(50_000), receiver.getsockname())
            held += size if kind == "tcp" else 0
    except BlockingIOError:
        pass
    held += waiting(receiver) if kind == "udp" else 0
print(held >> 20)
"""
"""Says how many MiB wait in sockets that nobody reads."""


@needs_cgroups
@pytest.mark.parametrize(("kind", "sockets"), [("tcp", 150), ("udp", 900)])
@with_boxes(Limits(memory_mb=64, disk_mb=16))
async def test_what_waits_in_sockets_counts(box: Box, other: Box, kind: str, sockets: int) -> None:
    held = await box.exec(["python", "-c", UNREAD, kind, str(sockets)], timeout=30)
    assert held.limit == "memory" or int(held.stdout) < 100, held
    assert (await other.exec(["python", "-c", UNREAD, kind, "1"], timeout=20)).code == 0


UNREAD_ANSWERS = """
import socket, struct, time
kept = []
for _ in range(800):
    kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    kept[-1].setblocking(False)
    try:
        for _ in range(200):
            kept[-1].send(struct.pack("=IHHIIBxxx", 20, 18, 0x301, 1, 0, 0))
    except OSError:
        pass
time.sleep(20)
"""
"""Asks the kernel for its list of network devices, and reads no answer: up to 320 MiB of them."""


@pytest.mark.parametrize("cgroups", [pytest.param(True, marks=needs_cgroups), False])
def test_answers_that_wait_in_netlink_sockets_count(tmp_path: Path, cgroups: bool) -> None:
    @with_boxes(Limits(memory_mb=64, disk_mb=16), cgroups=cgroups)
    async def ended(box: Box) -> None:
        result = await box.exec(["python", "-c", UNREAD_ANSWERS], timeout=30)
        assert (result.code, result.limit) == (137, "memory"), result

    ended(tmp_path)


@for_root
def test_an_ordinary_user_is_given_none_where_nothing_is_delegated() -> None:
    program = "from etude.sandbox.embedded.cgroups import Cgroups; found = Cgroups.find(); print(found)"
    said = run_as_nobody(["-c", program], [], timeout=60)
    assert said.stdout == "None\n", said
