"""Memory that no process has mapped, where no cgroup counts it: it is found, counted once, and ended."""

from __future__ import annotations

import errno
import mmap
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sandbox.test_cgroups import HOARD, with_boxes

from etude.sandbox import Box, Limits
from etude.sandbox.inside.memory import detached_bytes_in, memfd_bytes, retry_on_enomem

MIB = 1 << 20
HEAD = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n"  # noqa: E501
HOARDS = {
    "files": HOARD,
    "files of many": "import os, time\n"
    "for _ in range(10):\n"
    " if os.fork() == 0:\n  one = os.memfd_create('x')\n  for _ in range(20): os.write(one, bytes(1 << 20))\n"
    "  time.sleep(90)\n"
    "time.sleep(90)\n",
    "files of a thread": "import ctypes, os, threading, time\n"
    "def hoard():\n"
    " ctypes.CDLL(None).unshare(0x400)\n"  # From here on its descriptors are its own.
    " kept = [os.memfd_create('x') for _ in range(100)]\n"
    " for one in kept: os.write(one, bytes(2 << 20))\n"
    " time.sleep(90)\n"
    "threading.Thread(target=hoard).start()\n",
    "segments": "import ctypes, time\nlibc = ctypes.CDLL(None)\nlibc.shmat.restype = ctypes.c_void_p\n"
    "for _ in range(100):\n"
    " one = libc.shmget(0, 2 << 20, 0o1600)\n"
    " place = libc.shmat(one, None, 0)\n"
    " ctypes.memset(place, 1, 2 << 20)\n"
    " libc.shmdt(ctypes.c_void_p(place))\n"
    "time.sleep(90)\n",
}
SHARED = """
import mmap, os, sys, time
size = 48 << 20
one = os.memfd_create('shared')
os.truncate(one, size)
place = mmap.mmap(one, size)
for at in range(0, size, 4096): place[at] = 1
time.sleep(1)
sys.stdin.readline()
print('kept')
"""


@pytest.mark.parametrize("hoard", list(HOARDS))
@with_boxes(Limits(memory_mb=64, disk_mb=16), cgroups=False)
async def test_a_hoard_ends(box: Box, hoard: str) -> None:
    ended = await box.exec(["python", "-c", HOARDS[hoard]], timeout=60)
    assert (ended.code, ended.limit) == (137, "memory"), ended


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's boxes may have but one user")
@with_boxes(Limits(memory_mb=64, disk_mb=16), cgroups=False)
async def test_a_hoard_of_another_user_is_seen(box: Box) -> None:
    for user in ("grader", "root", "agent"):
        ended = await box.exec(["python", "-c", HOARD], timeout=60, user=user)
        assert (ended.code, ended.limit) == (137, "memory"), (user, ended)


@with_boxes(Limits(memory_mb=64, disk_mb=16), cgroups=False)
async def test_what_is_open_and_mapped_counts_once(box: Box) -> None:
    kept = await box.exec(["python", "-c", SHARED], timeout=60)
    assert (kept.stdout, kept.limit) == (b"kept\n", ""), kept
    one = await box.start(["python", "-c", SHARED], timeout=60)
    while (used := (await box.stats()).memory_bytes) < 48 * MIB:
        assert (await one.poll(wait=0.01)).code is None, used
    assert used < 62 * MIB


def test_a_file_counts_for_one_of_those_that_hold_it() -> None:
    def held(seen: set[int]) -> int:
        return memfd_bytes(["/proc/self"], seen)

    before, everything = held(set()), set[int]()
    held(everything)
    first, second = os.memfd_create("one"), os.dup(0)
    try:
        os.write(first, bytes(3 * MIB))
        os.dup2(first, second)
        assert held(set()) - before == 3 * MIB
        assert held(everything) == 3 * MIB
        assert held(everything) == 0, "counted for another already"
        with mmap.mmap(-1, MIB) as private:
            private[:] = bytes(MIB)
            assert held(everything) == 0
    finally:
        os.close(first)
        os.close(second)
    assert held(set()) == before
    assert memfd_bytes(["/proc/1073741824"], set()) == 0, "no such process"


ROW = st.tuples(st.integers(0, 9), st.integers(0, 1 << 40), st.integers(-(1 << 31), (1 << 31) - 1))


@given(st.lists(ROW, max_size=8))
def test_only_segments_without_a_process_count(rows: list[tuple[int, int, int]]) -> None:
    lines = [
        f"{key:10d} {7:10d}  1600 {rss + 1:21d} {1:5d} {2:5d}  {attached:5d} {0:5d} {0:5d} {0:5d} {0:5d} "
        f"{0:10d} {0:10d} {0:10d} {rss:21d} {0:21d}\n"
        for attached, rss, key in rows
    ]
    assert detached_bytes_in(HEAD + "".join(lines)) == sum(rss for attached, rss, _ in rows if attached == 0)


def test_what_the_kernel_refuses_for_a_moment_is_asked_for_again() -> None:
    answers = [errno.ENOMEM, errno.ENOMEM, 0, errno.EIO]

    def act() -> None:
        if number := answers.pop(0):
            raise OSError(number, os.strerror(number))

    retry_on_enomem(act)
    assert answers == [errno.EIO]
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        retry_on_enomem(act)
    answers += [errno.ENOMEM] * 3
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        retry_on_enomem(act, seconds=-1.0)
    assert len(answers) == 2, "not for ever"
