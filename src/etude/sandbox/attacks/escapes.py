"""Ways out of a box: the host's files, processes, services, kernel and devices, and other users of the box."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import socket
from pathlib import Path

from etude.sandbox.attacks import classes
from etude.sandbox.attacks.attack import LARGE, Attack, NotTried, Scene, attack, prepare
from etude.sandbox.attacks.classes import AttackClass, Need
from etude.sandbox.attacks.programs import floods
from etude.sandbox.contract import Box, Capability, Feature, Limits, RequestRefused
from etude.sandbox.inside.kernel import MACHINE

_INIT = Capability.OWN_INIT
INSIDE: dict[str, tuple[AttackClass, tuple[Need, ...]]] = {
    "kernel_settings": (classes.SETTINGS, (_INIT,)),
    "kernel_secrets": (classes.SETTINGS, (_INIT,)),
    "pid_1": (classes.INIT, ()),
    "mounting": (classes.NAMESPACES, ()),
    "unmounting": (classes.NAMESPACES, (_INIT,)),
    "new_namespaces": (classes.NAMESPACES, ()),
    "entering_namespaces": (classes.NAMESPACES, (_INIT,)),
    "chroot": (classes.NAMESPACES, (Capability.NAMESPACES,)),
    "devices": (classes.DEVICES, ()),
    "terminal": (classes.DEVICES, ()),
    "network": (classes.NETWORK, (Capability.NAMESPACES,)),
    "odd_sockets": (classes.NETWORK, ()),
    "netlink": (classes.NETWORK, (_INIT,)),
    "system_calls": (classes.CALLS, ()),
}
"""Attacks that only run a function of programs/escapes.py in a fresh box, by the function's name. Each has its class,
and the features that it needs beyond those that the class needs."""


def _inside(name: str) -> Attack:
    of, needs = INSIDE[name]

    async def act(scene: Scene) -> None:
        await scene.run_as_all(await scene.box(), name)

    act.__name__ = name
    return attack(of, *needs)(act)


INSIDE_ATTACKS = [_inside(name) for name in INSIDE]


@attack(classes.FOLDERS, Capability.OWN_INIT)
async def system_folders(scene: Scene) -> None:
    """Write to, replace or change what the host shows read-only."""
    env = Path("/usr/bin/env")
    before = env.stat().st_ctime_ns
    await scene.run_as_all(await scene.box(), "system_folders")
    scene.count(env.stat().st_ctime_ns == before, f"{env} of the host has changed")


@attack(classes.FILES, Capability.NAMESPACES)
async def host_files(scene: Scene) -> None:
    """Reach files of the host by name, through /proc, or by climbing."""
    (scene.folder / "marker-of-the-host").write_text("x", encoding="utf-8")
    places = [str(scene.folder), __file__, str(Path.home()), "/root", "/etc/shadow", "/var/lib", "/srv", "/sys"]
    box = await scene.box(Limits())
    await scene.run_as_all(box, "host_files", *places)
    listed = await box.exec("ls -A /var/log", timeout=20)
    scene.count(not listed.stdout, f"/var/log: {listed.stdout!r}")


@attack(classes.FILES)
async def linked_requests(scene: Scene) -> None:
    """Swap a folder for a link while the owner reads and writes below it."""
    box = await scene.box(LARGE)
    await prepare(box, "mkdir in ~/out && echo inside >in/f && echo outside >~/out/f")
    swapping = asyncio.create_task(box.exec(["python", "-c", floods.SWAP], timeout=20))
    seen: set[bytes] = set()
    while not swapping.done():
        try:
            seen.add(await box.read_file("in/f"))
            await box.write_file("in/g", b"x")
        except (RequestRefused, OSError):
            continue
    if not seen or (await swapping).code:
        raise NotTried(f"nothing was read, or swapped: {await swapping}")
    scene.count(seen <= {b"inside\n"}, f"a request read {seen}")
    scene.count((await box.exec("ls ~/out/g", timeout=20)).code != 0, "a request wrote through a link")


@attack(classes.OTHERS)
async def processes_of_the_host(scene: Scene) -> None:
    """See or signal processes of the host and of another box."""
    sleeper = await asyncio.create_subprocess_exec("sleep", "97.0625", env={"MARKER_OF_THE_HOST": "x"})
    try:
        box, _ = [await scene.box() for _ in range(2)]
        await scene.run_as_all(box, "processes", "MARKER_OF_THE_HOST"[::-1], "97.0625"[::-1])
        scene.count(sleeper.returncode is None, "a process of the host was ended")
    finally:
        with contextlib.suppress(ProcessLookupError):
            sleeper.kill()
        await sleeper.wait()


@attack(classes.OTHERS, Feature.SECOND_USER)
async def another_user(scene: Scene) -> None:
    """Signal, trace or read a process of the box's second user."""
    box = await scene.box()
    secret = asyncio.create_task(
        box.exec("echo $$ >/tmp/pid; sleep 60", timeout=60, user="grader", env={"SECRET": "of-the-grader"})
    )
    try:
        await prepare(box, "until test -s /tmp/pid; do sleep 0.01; done")
        await scene.run(box, "other_user", "of-the-grader")
    finally:
        secret.cancel()
        await asyncio.wait({secret})


_SHOWER = "import os\nfor n in range(1, 65):\n try: os.kill(1, n)\n except OSError: pass\nprint('sent')"


@attack(classes.INIT)
async def signals_to_pid_1(scene: Scene) -> None:
    """Send every signal to pid 1, and SIGKILL to all."""
    box = await scene.box(Limits())
    for user in scene.users:
        sent = await box.exec(["python", "-c", _SHOWER], timeout=20, user=user)
        if sent.stdout != b"sent\n":
            raise NotTried(f"as {user}: {sent}")
        await box.exec("kill -9 -1", timeout=20, user=user)
        await scene.lives(box)


@attack(classes.RIGHTS)
async def set_uid_programs(scene: Scene) -> None:
    """Become root by set-id programs or system calls."""
    box = await scene.box(Limits())
    if Feature.ROOT_USER in scene.sandboxes.features:
        await prepare(box, "cp /usr/bin/id /tmp/as-root && chmod 6755 /tmp/as-root", user="root")
    await scene.run(box, "set_uid")


DOCKERS_CAPABILITIES = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))


@attack(classes.RIGHTS)
async def rights_over_the_host(scene: Scene) -> None:
    """Hold a capability in a command of the box, or be able to gain one."""
    box = await scene.box(Limits())
    for user in scene.users:
        status = (await box.exec("cat /proc/self/status", timeout=20, user=user)).stdout.decode()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        allowed = DOCKERS_CAPABILITIES if user == "root" else 0
        held = int(fields["CapEff"], 16) | int(fields["CapPrm"], 16) | int(fields["CapAmb"], 16)
        scene.count(held & ~allowed == 0, f"capabilities {held:x} as {user}")
        scene.count((fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2"), f"{user} is not filtered: {status}")


@attack(classes.NETWORK, Capability.NAMESPACES)
async def services_of_the_host(scene: Scene) -> None:
    """Connect to TCP, UDP and unix sockets on which the host listens."""
    listeners = [socket.create_server(("127.0.0.1", 0))]
    if socket.has_dualstack_ipv6():
        listeners.append(socket.create_server(("::1", 0), family=socket.AF_INET6))
    names = [f"\0etude-escape-{os.getpid()}", str(scene.folder / "s")]
    for name in names:
        listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listeners[-1].bind(name)
        listeners[-1].listen()
    addresses = [[int(each.family), *each.getsockname()[:2]] for each in listeners if each.family != socket.AF_UNIX]
    addresses += [[int(socket.AF_UNIX), name] for name in names]
    try:
        await scene.run_as_all(await scene.box(), "services", *map(json.dumps, addresses))
    finally:
        for listener in listeners:
            listener.close()


@attack(classes.NEIGHBOURS, Capability.OWN_INIT)
async def shared_memory_of_the_host(scene: Scene) -> None:
    """Find a System V segment of the host by its key."""
    libc, key = ctypes.CDLL(None, use_errno=True), 0x0E000000 + os.getpid()
    segment = libc.shmget(key, 4096, 0o1666)
    try:
        await scene.run_as_all(await scene.box(), "shared_memory", str(key))
    finally:
        libc.shmctl(segment, 0, None)


@attack(classes.NEIGHBOURS, Capability.OWN_INIT)
async def traces_of_neighbours(scene: Scene) -> None:
    """Learn from mounts, files and names how many other boxes there are, and what they do."""
    boxes = [await scene.box() for _ in range(3)]
    await prepare(boxes[0], "echo of another >/tmp/marker && echo x >/dev/shm/marker")
    looks = [await scene.run(box, "neighbours") for box in boxes[1:]]
    scene.count(looks[0] == looks[1], f"two boxes look different: {looks}")


if MACHINE == "x86_64":

    @attack(classes.CALLS, Capability.OWN_INIT)
    async def other_calling_conventions(scene: Scene) -> None:
        """Make system calls as x32, or by the interrupt of i386."""
        box = await scene.box()
        await scene.run(box, "x32")
        by_interrupt = await box.exec(["python", "-c", floods.INTERRUPT_80], timeout=20)
        scene.count(by_interrupt.code == 128 + 31, by_interrupt)


@attack(classes.FILLING, Capability.OWN_INIT)
async def shared_and_file_memory(scene: Scene) -> None:
    """Take memory that no single process has: shared maps, and files in memory."""
    box = await scene.box(LARGE)
    # Where files are not limited together, they would fill the host's disk.
    for bomb in ["shared"] + ["tmpfs"] * (Feature.DISK_LIMIT in scene.sandboxes.features):
        ended = await box.exec(["python", "-c", floods.MEMORY_BOMBS[bomb]], timeout=60)
        scene.count(ended.code != 0 and not ended.timed_out, (bomb, ended))
        await box.exec("rm -rf /tmp/bomb", timeout=20)
        await scene.lives(box)


@attack(classes.FILLING, Feature.DISK_LIMIT)
async def inodes(scene: Scene) -> None:
    """Use up a box's inodes; others keep theirs, and this box recovers once it deletes the files."""
    box, other = [await scene.box(LARGE) for _ in range(2)]
    filled = await box.exec(["python", "-c", floods.FILL_INODES], timeout=60)
    scene.count(b"No space left" in filled.stdout, filled)
    scene.count((await other.exec("touch here", timeout=20)).code == 0, "another box has no inodes left")
    scene.count((await box.exec("rm -rf bomb; touch here", timeout=60)).code == 0, "the box stays full")


@attack(classes.FILLING)
async def descriptors(scene: Scene) -> None:
    """Take all descriptors and terminals."""
    box = await scene.box(LARGE)
    for path in ("/dev/null", "/dev/ptmx"):
        greedy = f"import os\nkept = []\ntry:\n  while True: kept.append(os.open({path!r}, os.O_RDWR))\n"
        greedy += "except OSError as e: print(len(kept) < 5000)"
        took = await box.exec(["python", "-c", greedy], timeout=30)
        scene.count(took.stdout == b"True\n", took)
    await scene.lives(box)


@attack(classes.HIDING)
async def left_behind(scene: Scene) -> None:
    """Outlive the command: as a daemon, nameless, stopped, leaderless, respawning..."""
    box = await scene.box(LARGE)
    ways = ["daemon", "nameless", "unreadable", "stopped", "subreaper", "vfork", "leaderless", "respawning"]
    await prepare(box, "mkfifo /tmp/go")
    sentinel = asyncio.create_task(box.exec("echo $$ >/tmp/pid; read go </tmp/go; echo spared", timeout=60))
    at_rest = "grep -q ') S' /proc/$(cat /tmp/pid)/stat"
    await prepare(box, f"until test -s /tmp/pid && {at_rest}; do sleep 0.01; done")
    before = await processes_of(box)
    ends = await asyncio.gather(*(box.exec(["python", "-c", floods.HIDING, way], timeout=1.0) for way in ways))
    for way, end in zip(ways, ends, strict=True):
        scene.count(end.seconds < 60, f"{way} took {end.seconds} s to end")
    after = await processes_of(box)
    scene.count(after == before, f"left: {after}, before: {before}")
    await box.exec("echo >/tmp/go", timeout=20)
    scene.count((await sentinel).stdout == b"spared\n", "the end of a command ended another one")


async def processes_of(box: Box) -> list[str]:
    """Return name and state of each process in the box, including the shell that lists them. Pid 1 is left out, because
    its state may vary."""
    look = (
        "for p in /proc/[0-9]*; do read -r pid name state rest <$p/stat && "
        '[ $pid != 1 ] && echo "$name $state"; done 2>/dev/null; true'
    )
    return sorted((await box.exec(look, timeout=20)).stdout.decode().splitlines())
