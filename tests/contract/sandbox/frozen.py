"""Boxes whose processes do not stand still while they are copied, or that leave odd things to list and to name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.contract.sandbox.support import PATIENCE, in_a_box, ok, output_until

from etude.sandbox import Box, BoxBusy, BoxSpec, Feature, Limits, RequestRefused, SandboxError, Sandboxes

RACE_TRIES = 6
"""How often each race is tried. The attacks' benchmark tries more."""
SECRET = b"seen on the host"
_AWAKE = """
import ctypes, os, signal, struct, sys, threading, time
libc = ctypes.CDLL(None)
def be_woken(nanoseconds):
    signal.signal(signal.SIGCONT, lambda *_: None)
    timer, times = ctypes.c_void_p(), struct.pack("=qqqq", 0, nanoseconds, 0, nanoseconds)
    assert libc.timer_create(1, struct.pack("=QII", 0, signal.SIGCONT, 0) + bytes(48), ctypes.byref(timer)) == 0
    assert libc.timer_settime(timer, 0, times, None) == 0
"""
SWAPPER = f"""{_AWAKE}
goal, held = sys.argv[1], sys.argv[2] == "held" and open("held", "w+")
for number in range(150):
    os.makedirs(f"a/{{number}}/b")
    open(f"a/{{number}}/f", "w").close()
os.makedirs("d/into")
open("d/mine", "w").close()
os.symlink(goal, "link")
if held: held = os.open("held", os.O_RDONLY)
be_woken(2_000_000)
print("ready", flush=True)
while True: libc.renameat2(-100, b"d", -100, b"link", 2)
"""
"""Wakes itself every 2 ms, and swaps a folder for a link all the time. With an open file, a fork copies its box."""
WANDERER = f"""{_AWAKE}
places = [f"/tmp/place{{number}}" for number in range(4)]
for place in places: os.makedirs(place, exist_ok=True)
def wander():
    for number in range(1 << 40):
        os.chdir(places[number % 4])
        time.sleep(0)
for _ in range(4): threading.Thread(target=wander, daemon=True).start()
be_woken(4_000_000)
print("ready", flush=True)
while True: time.sleep(0.0001)
"""
"""Wakes itself every 4 ms, and walks about with several threads."""
NAMED = """
import ctypes, os, time
ctypes.CDLL(None).prctl(15, b"\\xff\\xfe\\n", 0, 0, 0)
held = open(b"odd\\xff\\nname", "w")
print("ready", flush=True)
time.sleep(60)
"""
NESTED = """
import os
os.mkdir("deep"); os.chdir("deep")
for _ in range(490): os.mkdir("n" * 250); os.chdir("n" * 250)
for number in range(100): open(f"{number}", "w").close()
"""
SPARSE = """
for number in range(300):
    with open(f"hollow{number}", "wb") as file:
        file.truncate(60 << 20)
        file.seek(30 << 20)
        file.write(b"%d" % number)
"""


class FrozenCases:
    awake_forks = 4
    """How often a box that wakes is forked, for each of RACE_TRIES. Fewer in backends where a fork takes long."""

    @pytest.mark.parametrize("way", ["snapshot", "fork"])
    @in_a_box(Limits())
    async def test_a_box_that_wakes_leads_no_copy_out(
        self, sandboxes: Sandboxes, image: str, tmp_path: Path, way: str
    ) -> None:
        """A process that has the host's root as its own shows it in the /proc of whoever copies."""
        host = tmp_path / "host"
        host.mkdir()
        (host / "secret").write_bytes(SECRET)
        for turn in range(RACE_TRIES):
            box = await sandboxes.create(BoxSpec(image, limits=Limits()))
            goal = (f"/proc/{os.getpid()}/root{host}", str(host))[turn % 2]
            process = await box.start(["python", "-c", SWAPPER, goal, "held" if way == "fork" else ""], timeout=60)
            await output_until(process, b"ready\n")
            try:
                copy = await sandboxes.create(BoxSpec(await box.snapshot())) if way == "snapshot" else await fork(box)
            except BoxBusy:
                continue
            finally:
                assert [path.name for path in host.iterdir()] == ["secret"]
            seen = await copy.exec("find . -name secret; cat d/secret link/secret; find a -name f | wc -l", timeout=20)
            assert SECRET not in seen.stdout
            assert seen.stdout == b"150\n", seen
            assert ok(await box.exec("echo alive", timeout=10)) == "alive\n"
            for each in (copy, box):
                await each.destroy()

    @in_a_box(Limits())
    async def test_a_box_that_wakes_goes_on_after_forks(self, sandboxes: Sandboxes, image: str) -> None:
        box = await sandboxes.create(BoxSpec(image, limits=Limits()))
        process = await box.start(["python", "-c", WANDERER], timeout=60)
        await output_until(process, b"ready\n")
        for turn in range(self.awake_forks * RACE_TRIES):
            await box.write_file("turn", b"%d" % turn)
            try:
                child = await fork(box)
            except BoxBusy:
                continue
            assert await child.read_file("turn") == b"%d" % turn
            await child.destroy()
            assert ok(await box.exec("echo alive", timeout=10)) == "alive\n"
        assert (await process.poll()).code is None

    @in_a_box(Limits())
    async def test_names_of_any_bytes_end_no_box(self, box: Box) -> None:
        process = await box.start(["python", "-c", NAMED], timeout=60)
        await output_until(process, b"ready\n")
        for copying in (box.fork, box.snapshot):
            with pytest.raises(BoxBusy) as busy:
                await copying()
            assert str(busy.value).isprintable()
        assert ok(await box.exec("echo alive", timeout=10)) == "alive\n"

    @in_a_box(Limits(memory_mb=64))
    async def test_long_paths_end_no_box(self, box: Box) -> None:
        ok(await box.exec(["python", "-c", NESTED], timeout=30))
        for look in (box.list_files, box.read_tree, lambda: box.layout(["."]), box.snapshot):
            with pytest.raises(RequestRefused, match="nested"):
                await look()
        assert ok(await box.exec("echo alive", timeout=10)) == "alive\n"

    @in_a_box(Limits(memory_mb=64))
    async def test_folders_that_are_read_as_files_end_no_box(self, box: Box) -> None:
        for _ in range(1100):
            with pytest.raises((IsADirectoryError, SandboxError)):
                await box.read_file("pkg")
        assert ok(await box.exec("echo alive", timeout=10)) == "alive\n"

    @in_a_box(Limits())
    async def test_copies_hold_as_much_as_their_box(self, sandboxes: Sandboxes, box: Box) -> None:
        """300 files of 60 MiB that are nearly empty."""
        if Feature.DISK_LIMIT not in sandboxes.features:
            pytest.skip("this backend limits single files, not their sum")
        ok(await box.exec(["python", "-c", SPARSE], timeout=30))
        holder = await box.start("exec 3<hollow1; echo ready; sleep 60", timeout=60)
        await output_until(holder, b"ready\n")
        began = time.monotonic()
        copies = [await sandboxes.create(BoxSpec(await box.snapshot())), await fork(box)]
        assert time.monotonic() - began < PATIENCE / 4
        look = "stat -c %s hollow* | sort -u; du -sk . | cut -f1; tail -c +31457281 hollow77 | head -c 2"
        for copy in copies:
            size, used, text = ok(await copy.exec(look, timeout=20)).split("\n")
            assert (int(size), text) == (60 << 20, "77")
            assert int(used) < 300 * 200


async def fork(box: Box) -> Box:
    (child,) = await box.fork()
    return child
