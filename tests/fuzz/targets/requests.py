"""What a hostile process that owns a box sends to the box's pid 1. It may destroy its own box, and nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of
from tests.fuzz.targets.values import TEXTS, mostly, record, written
from tests.fuzz.temporary import fresh_folder

from etude.sandbox.inside import files, init, kernel, wire
from etude.sandbox.inside.memory import CgroupMemory

_SECRET = b"what is beside the box's root"
_FILE_REQUESTS = ("read", "write", "list", "layout", "read_tree", "check_tree", "write_tree")
_ENDS = (wire.BrokenFrame, init.OwnerGone, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""Pid 1 ends at a request that its owner never sends, and the box with it."""
_LIMITS = {"memory_mb": 64, "processes": 8, "cpu_seconds": 1, "file_mb": 1, "disk_mb": 8, "output_bytes": 1000}


class _Pid1(init.Init):
    """Answers requests about files. What concerns processes would concern those of this host."""

    def perform(self, header: wire.Header, payload: bytes) -> tuple[wire.Header, bytes] | None:
        if header["op"] in _FILE_REQUESTS:
            return super().perform(header, payload)
        if header["op"] in ("exec", "start"):
            self.check_size("stdin", len(payload))
            self.launch_of(header)
        elif header["op"] in ("poll", "feed", "close_input", "resize", "kill", "cancel"):
            return super().perform(header, payload)
        return {}, b""


@contextlib.contextmanager
def _as_root_of_a_box(root: Path) -> Iterator[None]:
    """Resolve absolute paths below `root`, as in a box."""
    usual = files._base_of

    @contextlib.contextmanager
    def base_of(workdir: str, path: str) -> Iterator[tuple[int, str, int]]:
        if not path.startswith("/") or "\0" in path:
            with usual(workdir, path) as found:
                yield found
            return
        base = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield base, path.lstrip("/") or ".", kernel.RESOLVE_IN_ROOT
        finally:
            os.close(base)

    files._base_of = base_of
    try:
        yield
    finally:
        files._base_of = usual


def _run(data: bytes) -> str:
    place = fresh_folder("box")
    root, outside = place / "root", place / "outside"
    for folder in (root / "work/below", root / "etc", outside):
        folder.mkdir(parents=True)
    (root / "work/a").write_bytes(b"content")
    (root / "etc/passwd").write_bytes(b"root:x:0:0::/:/bin/sh\n")
    (outside / "secret").write_bytes(_SECRET)
    for number, goal in enumerate(
        ("../../outside", str(outside), "/outside", "a", "nowhere", "loop4", "/proc/self/fd")
    ):
        (root / f"work/loop{number}").symlink_to(goal)
    ours, theirs = socket.socketpair()
    opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with ours, theirs, _as_root_of_a_box(root):
        ours.setblocking(False)
        message = {"limits": _LIMITS, "workdir": str(root / "work"), "env": {}, "single_id": os.geteuid()}
        pid1 = _Pid1((theirs.fileno(), theirs.fileno()), message, many_ids=False, memory=CgroupMemory(None))
        outcome, said = _served(pid1, data, ours)
        assert len(os.listdir("/proc/self/fd")) <= opened + 1, "descriptors are left open"  # noqa: PTH208
    assert _SECRET not in said, "a file outside was read"
    assert sorted(path.name for path in place.iterdir()) == ["outside", "root"], "something is outside"
    assert [path.name for path in outside.iterdir()] == ["secret"], "something is outside"
    assert (outside / "secret").read_bytes() == _SECRET, "a file outside was written"
    return outcome


def _served(pid1: _Pid1, data: bytes, ours: socket.socket) -> tuple[str, bytes]:
    """Let pid 1 read the bytes in pieces. Return how that ended, and what it said."""
    said = bytearray()
    step = 1 + sum(data[:7]) % 997
    outcome = "serves"
    try:
        for at in range(0, len(data), step):
            for header, payload in pid1.frames.feed(data[at : at + step]):
                pid1.answer(header, payload)
                with contextlib.suppress(BlockingIOError):
                    said += ours.recv(1 << 20)
                pid1.sender.flush()
    except _ENDS as error:
        outcome = f"ends: {type(error).__name__}"
    with contextlib.suppress(BlockingIOError):
        said += ours.recv(1 << 20)
    refusals = [line for line in said.split(b'"kind":"') if b"error" in line]
    return (kind_of(ValueError(refusals[-1][:60])) if refusals and outcome == "serves" else outcome), bytes(said)


_PATHS = TEXTS | st.sampled_from(
    [
        *(
            "a",
            "below/x",
            "loop0/secret",
            "loop1/secret",
            "/work/loop1/new",
            "../outside/secret",
            "/../outside/x",
            "loop4",
        ),
        *("/work/a", "below/../../x", "loop6/0", ".", "/", "loop0", "deep/" * 40 + "x", "/work/loop2/x", "loop3/x"),
    ]
)
_ENTRY = st.tuples(
    *(mostly(usual) for usual in (_PATHS, st.sampled_from(["file", "folder", "link", "hard"]), st.just(0o644))),
    *(mostly(st.integers(0, 3)) for _ in range(4)),
    mostly(_PATHS),
).map(list)
_HEADERS = st.one_of(
    *(
        record({"op": st.just(op), "ticket": st.integers(0, 9), "path": _PATHS, "max_bytes": st.just(1 << 20)})
        for op in ("read", "list")
    ),
    record({"op": st.just("write"), "ticket": st.just(1), "path": _PATHS, "executable": st.booleans()}),
    record({"op": st.just("layout"), "ticket": st.just(1), "paths": st.lists(_PATHS, max_size=3)}),
    record(
        {
            "op": st.just("read_tree"),
            "ticket": st.just(1),
            "path": _PATHS,
            "max_bytes": st.just(1 << 20),
            "max_files": st.integers(0, 9),
        }
    ),
    *(
        record({"op": st.just(op), "ticket": st.just(1), "path": _PATHS, "entries": st.lists(_ENTRY, max_size=5)})
        for op in ("check_tree", "write_tree")
    ),
    *(
        record(
            {
                "op": st.just(op),
                "ticket": st.just(1),
                "argv": st.lists(TEXTS, max_size=2),
                "cwd": _PATHS,
                "env": st.dictionaries(TEXTS, TEXTS, max_size=2),
                "timeout": st.just(1.0),
                "user": TEXTS | st.sampled_from(["", "root", "agent:0", "0:0", "99999999999", "root:root"]),
                "stream": st.booleans(),
            }
        )
        for op in ("exec", "start")
    ),
    *(
        record({"op": st.just(op), "ticket": st.just(1), "process": st.integers(0, 3)})
        for op in ("poll", "feed", "kill")
    ),
    record(
        {
            "op": TEXTS | st.sampled_from(["cancel", "stats", "thaw"]),
            "ticket": st.integers(0, 3),
            "command": st.integers(0, 3),
        }
    ),
)


def _frame(header: object, payload: bytes, lie: int) -> bytes:
    encoded = written(header)
    size = len(payload) + (1 if lie == 1 else 0)
    return wire.LENGTHS.pack(len(encoded), size) + encoded + payload


TARGETS = (
    Target(
        "requests",
        _run,
        st.lists(st.builds(_frame, _HEADERS, st.binary(max_size=12), st.integers(0, 40)), max_size=8).map(b"".join),
        ("etude.sandbox.inside",),
    ),
)
