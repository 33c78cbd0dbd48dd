"""Limits: a command that exceeds one is ended, and the box stays usable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract.sandbox.support import PATIENCE, SMALL, in_a_box, ok, processes_in, under_way

from etude.sandbox import (
    Box,
    Limits,
    RequestRefused,
)


class LimitCases:
    @in_a_box()
    async def test_memory_of_one_process_is_limited(self, box: Box) -> None:
        hog = await box.exec(["python", "-c", "x = bytearray(10**9); print('got it')"], timeout=10)
        assert hog.code != 0
        assert b"MemoryError" in hog.stderr or hog.limit == "memory"

    @in_a_box()
    async def test_memory_of_all_processes_is_limited(self, box: Box) -> None:
        code = "import mmap, time\nx = bytearray(40 << 20)\nm = mmap.mmap(-1, 40 << 20)\nm[:] = x\ntime.sleep(90)"
        hogs = await box.exec(f"for i in 1 2 3 4; do python -c '{code}' & done; wait", timeout=PATIENCE)
        assert (hogs.limit, hogs.code, hogs.timed_out) == ("memory", 137, False)
        assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_a_box(replace(SMALL, memory_mb=512))
    async def test_fork_bomb_ends(self, box: Box) -> None:
        # With memory enough: a busy kernel takes its time to free what thousands of forks that failed had of the box's.
        bomb = await box.exec("b() { b | b & }; b; sleep 60", timeout=0.5)
        assert bomb.timed_out or bomb.code != 0
        assert await processes_in(box) == []
        idle = await under_way(box, "exec sleep 1.5")  # It starts nothing more: there will be no room.
        code = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
        assert (await box.exec(["python", "-c", code], timeout=0.4)).timed_out
        assert (await idle).code == 0
        assert ok(await box.exec("echo alive", timeout=5)) == "alive\n"

    @in_a_box(Limits(cpu_seconds=1))
    async def test_cpu_time_is_limited(self, box: Box) -> None:
        spin = await box.exec("while :; do :; done", timeout=2 * PATIENCE)
        assert (spin.limit, spin.timed_out) == ("cpu", False)
        assert spin.code in (128 + 24, 137)
        told = await box.exec("sh -c 'kill -XCPU $$'; exit $?", timeout=5)  # By a shell, of the program that it ran.
        assert (told.limit, told.code) == ("cpu", 128 + 24)

    @in_a_box(Limits(cpu_seconds=30))
    async def test_a_result_says_what_its_own_processes_had_of_the_hosts_time(self, box: Box) -> None:
        spins = "python -c 'import time\nwhile time.process_time() < 0.3: pass'"
        ok(await box.exec(spins, timeout=60))
        slept = await box.exec("sleep 5", timeout=0.5)
        assert slept.timed_out
        assert slept.share.cpu_seconds < 0.2, "not what commands before it took"
        assert 0.4 < slept.share.seconds < 60
        assert 0 < slept.share.given <= slept.share.seconds
        assert not slept.starved
        spun = await box.exec(f"{spins} & {spins}; wait; exec sleep 0", timeout=60)
        assert 0.55 < spun.share.cpu_seconds < 1.5
        # Also of those that nobody waited for when the clock expired.
        cut = await box.exec("(while :; do :; done) & sleep 60", timeout=1.0)
        assert cut.timed_out
        assert cut.share.cpu_seconds > 0.03

    @in_a_box()
    async def test_file_size_and_disk_are_limited(self, box: Box) -> None:
        big = await box.exec(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=10"], timeout=10)
        assert big.code != 0
        assert "limit" in big.limit or big.limit == "file"
        with pytest.raises(RequestRefused):
            await box.write_file("big", bytes(5 << 20))
