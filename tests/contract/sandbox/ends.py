"""How boxes end: destroyed, lost when killed, closed with their backend; and what a full disk does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from pathlib import Path

import psutil
import pytest
from tests.contract.sandbox.support import PATIENCE, Make, in_a_box, in_loop, ok, opened, under_way

from etude.sandbox import (
    Box,
    BoxSpec,
    DiskFull,
    Feature,
    Limits,
    SandboxError,
    Sandboxes,
    SandboxLost,
)


async def first_process_above(words: list[str]) -> psutil.Process:
    """Wait for a command with these words to run in some box; return that box's pid 1, seen from the host."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                    if process.cmdline() == words:
                        return next(above for above in process.parents() if is_first(above))
            await asyncio.sleep(0.01)


def is_first(process: psutil.Process) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    pids = next(line for line in status.splitlines() if line.startswith("NSpid")).split()
    return len(pids) > 2 and pids[-1] == "1"


class EndCases:
    @in_a_box()
    async def test_destroy_is_idempotent_and_final(self, box: Box) -> None:
        running = await under_way(box, "sleep 60")
        await box.destroy()
        await box.destroy()
        with pytest.raises(SandboxLost):
            await running
        for request in (box.exec("true", timeout=5), box.read_file("calc.py"), box.fork(), box.snapshot()):
            with pytest.raises(SandboxLost):
                await request

    @in_a_box(Limits())
    async def test_lost_when_its_first_process_is_killed(self, sandboxes: Sandboxes, image: str, box: Box) -> None:
        words = ["sleep", f"60.{os.getpid()}"]
        running = asyncio.create_task(box.exec(words, timeout=60))
        (await first_process_above(words)).kill()
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
            runs = [await under_way(box, "sleep 60") for box in boxes]
        await asyncio.gather(*runs, return_exceptions=True)
        await sandboxes.close()
        assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
        with pytest.raises(SandboxError):
            await sandboxes.create(BoxSpec(image))

    @in_a_box()
    async def test_many_boxes_in_a_row_and_at_once(self, sandboxes: Sandboxes, image: str) -> None:

        async def one(number: int) -> str:
            box = await sandboxes.create(BoxSpec(image))
            await box.write_file("n", str(number).encode())
            out = ok(await box.exec("cat n", timeout=30))
            await box.destroy()
            return out

        await one(0)
        gc.collect()  # What earlier tests of this process dropped is not closed in between.
        threads, numbers = threading.active_count(), psutil.Process().num_fds()
        children = len(psutil.Process().children(recursive=True))
        assert await asyncio.gather(*(one(n) for n in range(50))) == [str(n) for n in range(50)]
        for number in range(20):  # Enough to see what each leaves behind.
            assert await one(number) == str(number)
        assert psutil.Process().num_fds() <= numbers
        # Two boxes may stand ready, of which none need have stood when the others were counted. More were made
        # ahead while fifty were wanted at once, and go as fewer are; the last one may still be ending.
        async with asyncio.timeout(PATIENCE):
            while len(psutil.Process().children(recursive=True)) > children + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert threading.active_count() <= threads + 1

    @in_a_box()
    async def test_full_disk_is_named(self, sandboxes: Sandboxes, box: Box) -> None:
        if Feature.DISK_LIMIT not in sandboxes.features:
            pytest.skip("this backend limits single files, not their sum")
        filled = await box.exec("for i in 1 2 3 4 5 6; do head -c 3500000 /dev/zero >f$i || exit 1; done", timeout=10)
        assert b"No space left" in filled.stderr, filled
        names = [f"g{number}" for number in range(40)]
        outcomes = await asyncio.gather(*(box.write_file(n, bytes(1 << 20)) for n in names), return_exceptions=True)
        assert any(isinstance(outcome, DiskFull) for outcome in outcomes)
        assert ok(await box.exec("rm f1 f2; echo freed", timeout=5)) == "freed\n"
