"""Attacks with names, files and processes on which a request about the box might fail as no request may: with
SandboxLost, with an unexpected exception, or without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from etude.sandbox.attacks import classes
from etude.sandbox.attacks.attack import LARGE, NotTried, Scene, attack, prepare, program, start
from etude.sandbox.contract import (
    Box,
    BoxBusy,
    Capability,
    DiskFull,
    Feature,
    ImageError,
    Limits,
    RequestRefused,
    SandboxLost,
)

_FINE = (
    *(RequestRefused, BoxBusy, DiskFull, ImageError),
    *(FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError),
)
"""Exceptions that a request may raise by the sandbox's contract."""
_ANSWER = 120.0
_COPIES = (Feature.SNAPSHOT, Feature.FORK)


async def _ask(scene: Scene, what: str, call: Callable[[], Awaitable[object]]) -> None:
    """Make a request, and count anything but an answer or a refusal as a breach."""
    try:
        async with asyncio.timeout(_ANSWER):
            made = await call()
    except _FINE:
        scene.held()
    except TimeoutError:
        scene.breach(f"{what}: no answer in {_ANSWER:.0f} s")
    except Exception as error:  # noqa: BLE001  # Any other is what the attack wants.
        scene.breach(f"{what}: {type(error).__name__}: {error}")
    else:
        scene.held()
        if isinstance(made, list):
            await asyncio.gather(*(child.destroy() for child in made if not isinstance(child, str)))


async def _ask_all(scene: Scene, box: Box, what: str, path: str) -> None:
    """Make every kind of request about `path` or the whole box, among them reading, writing, snapshot and fork. Then
    see whether the box still answers. `what` describes the attack in the messages."""
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "read_file": lambda: box.read_file(path),
        "list_files": lambda: box.list_files(path),
        "layout": lambda: box.layout([f"/{path}" if not path.startswith("/") else path]),
        "read_tree": lambda: box.read_tree(path),
        "write_file": lambda: box.write_file(f"{path}/new", b"x"),
        "stats": box.stats,
        "snapshot": box.snapshot,
        "fork": lambda: box.fork(1),
    }
    for name, call in requests.items():
        await _ask(scene, f"{name} of {what}", call)
        if scene.breaches and "SandboxLost" in scene.breaches[-1]:
            return
    await _alive(scene, box, what)


async def _alive(scene: Scene, box: Box, what: str) -> None:
    try:
        await scene.lives(box)
    except SandboxLost as error:
        scene.breach(f"after {what}: {error}")


_NAMED = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)  # PR_SET_NAME
kept = open("held", "w")
print("ready", flush=True)
time.sleep(60)
"""
NAMES = {
    "not UTF-8": b"\xff\xfe\x80",
    "a line break": b"a\nb c",
    "parentheses": b") R 1 (",
    "empty": b"",
    "quotes": b'"\\x\x1b[2J',
}


@attack(classes.SERVING, Feature.BACKGROUND, *_COPIES)
async def names_of_processes(scene: Scene) -> None:
    """Give a process that has a file open for writing an odd name; then make all requests, such as fork and stats."""
    for what, name in NAMES.items():
        box = await scene.box()
        await start(box, ["python", "-c", _NAMED, name.hex()])
        await _ask_all(scene, box, f"a process named {what}", ".")


_DEEP = """
import os, sys
name, depth = "n" * int(sys.argv[1]), int(sys.argv[2])
os.mkdir("deep"); os.chdir("deep")
for _ in range(depth):
    try: os.mkdir(name); os.chdir(name)
    except OSError as error: print(error); break
for n in range(int(sys.argv[3])): open(f"f{n}", "w").close()
"""
_MANY = """
import os
os.makedirs("deep")
for n in range(30_000):
    try: os.symlink("x" * 4000, f"deep/{'l' * 200}{n}")
    except OSError as error: print(error); break
"""
_ODD = """
import os, socket
os.makedirs("deep"); os.chdir("deep")
os.mkfifo("fifo"); os.symlink("loop", "loop"); os.symlink("/dev/zero", "zero"); os.symlink("fifo", "to-fifo")
open(b"\\xff\\xfe\\n", "w").close(); open("a" * 255, "w").close(); os.mkdir("shut"); os.chmod("shut", 0)
with open("sparse", "wb") as file: file.truncate(1 << 22)
kept = socket.socket(socket.AF_UNIX); kept.bind("named\\udcff".encode("utf-8", "surrogateescape"))
"""


@attack(classes.SERVING)
async def folders_that_take_much(scene: Scene) -> None:
    """Nest folders with long names deeply, or fill a folder with long links; then list, read and copy that folder."""
    for what, code, words in (
        ("490 folders of 255 letters", _DEEP, ["255", "490", "1500"]),
        ("2,000 folders of 1 letter", _DEEP, ["1", "2000", "1"]),
        ("many long links", _MANY, []),
    ):
        box = await scene.box(Limits(memory_mb=96, processes=20, cpu_seconds=60, disk_mb=200))
        await prepare(box, ["python", "-c", code, *words])
        await _ask_all(scene, box, what, "deep")


@attack(classes.SERVING)
async def odd_files(scene: Scene) -> None:
    """Make requests about pipes, loops of links, sockets, names that are not UTF-8, and folders without rights."""
    box = await scene.box(LARGE)
    await prepare(box, ["python", "-c", _ODD])
    for path in ("deep", "deep/fifo", "deep/to-fifo", "deep/loop", "deep/zero", "deep/sparse", "deep/shut"):
        await _ask_all(scene, box, path, path)


_PERIODS = (15, 10, 20, 3, 8, 1)
"""Intervals in milliseconds at which processes are woken; each try of `waking_in_a_fork` uses the next one."""


@attack(classes.SERVING, Feature.BACKGROUND, *_COPIES, race=True)
async def waking_in_a_fork(scene: Scene) -> None:
    """Fork a box, which moves its processes to a new root, while SIGCONT timers wake them and they change folders."""
    for number in range(scene.races):
        box = await scene.sandboxes.create(scene.spec(LARGE))
        try:
            await start(box, program("freezing", "wake", str(_PERIODS[number % len(_PERIODS)])))
            await _ask(scene, f"fork {number}", partial(box.fork, 1))
            await _alive(scene, box, f"fork {number}")
        finally:
            await box.destroy()


_SEGMENTS = """
import ctypes
libc = ctypes.CDLL(None)
for n in range(200):
    number = libc.shmget(n + 1, 4 << 20, 0o1666)
    if number < 0: break
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(number, None, 0)
    if address in (None, 2 ** 64 - 1): break
    ctypes.memset(address, 1, 4 << 20)
"""
_FILES = """
for name in one two; do dd if=/dev/zero of=/dev/shm/$name bs=1M count=30 || exit; done
dd if=/dev/zero of=big bs=1M count=31
"""
_UNMAPPED = """
import os, time
for n in range(3): os.write(os.memfd_create("kept"), bytes(12 << 20))
print("ready", flush=True)
time.sleep(90)
"""


@attack(classes.SERVING, Capability.NAMESPACES, Feature.BACKGROUND)
async def memory_left_behind(scene: Scene) -> None:
    """Fill memory that no process has (System V segments, /dev/shm, memfd); then the owner reads a large file."""
    box = await scene.box(Limits(memory_mb=64, processes=20, cpu_seconds=30, file_mb=32, disk_mb=64))
    took = await box.exec(["python", "-c", _SEGMENTS], timeout=60)
    if took.code and took.limit != "memory":
        raise NotTried(f"no segments: {took}")
    await prepare(box, _FILES)
    await start(box, ["python", "-c", _UNMAPPED])
    for _ in range(3):
        await _ask(scene, "read_file of 31 MB", lambda: box.read_file("big", max_bytes=64 << 20))
        await _ask(scene, "read_tree", lambda: box.read_tree("."))
    await _alive(scene, box, "segments")
