"""What holds where there are cgroups of version 2 alone. test_cgroup_v2.py runs this on a kernel that has them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sandbox.test_cgroups import folders, with_boxes

from etude.sandbox import Box, Limits, SandboxLost
from etude.sandbox.doctor import doctor
from etude.sandbox.embedded.box import EmbeddedBox
from etude.sandbox.embedded.cgroups import find_hierarchies
from etude.sandbox.embedded.cgroups.owners import PREFIX, remove_dead

TOP = Path("/sys/fs/cgroup")


def test_one_hierarchy_holds_everything() -> None:
    (found,) = find_hierarchies()
    assert (found.version, found.controllers) == (2, {"memory", "pids", "cpu"})
    own = TOP / Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")
    ours = [folder for folder in (own, *own.parents) if folder.is_relative_to(TOP) and os.access(folder, os.W_OK)]
    assert found.parent == ours[-1], "all that was handed to us"
    assert folders() == set(), "a trial leaves nothing"


def test_the_doctor_says_so() -> None:
    held = {finding.name: finding.held_by for finding in doctor()}
    assert (held["memory"], held["processes"]) == ("cgroup", "cgroup")


@with_boxes(Limits(processes=12))
async def test_the_kernel_counts_the_processes_of_a_box(box: Box) -> None:
    code = (
        "import os, time\n"
        "made = 0\n"
        "for _ in range(30):\n"
        " try:\n  if os.fork() == 0: time.sleep(20); os._exit(0)\n  made += 1\n"
        " except OSError: pass\n"
        "print(made)\n"
    )
    assert isinstance(box, EmbeddedBox)
    ((_, folder),) = box.cgroup._folders
    assert (folder / "pids.max").read_text() == "13\n", "with pid 1"
    (folder / "pids.max").write_text("6")  # Else the limit of processes that pid 1 keeps comes first.
    made = await box.exec(["python", "-c", code], timeout=20)
    assert (made.stdout, (folder / "pids.events").read_text()) == (b"4\n", "max 26\n")


@with_boxes(Limits())
async def test_a_box_whose_cgroup_is_killed_is_lost_alone(box: Box, other: Box) -> None:
    assert isinstance(box, EmbeddedBox)
    running = asyncio.create_task(box.exec("sleep 60", timeout=90))
    while (await box.stats()).processes == 0:
        pass
    ((_, folder),) = box.cgroup._folders
    (folder / "cgroup.kill").write_text("1")
    with pytest.raises(SandboxLost):
        await running
    assert (await other.exec("echo alive", timeout=20)).stdout == b"alive\n"


def test_the_janitor_ends_what_a_dead_owner_left_running() -> None:
    """As when its zygote stands still and cannot end its boxes."""
    program = (
        "import os\n"
        "from etude.sandbox.embedded.cgroups import Cgroups\n"
        "box = Cgroups.find().create('x', memory_bytes=1 << 26, processes=9)\n"
        "with box.open_entry_files() as (door, *_):\n"
        " if (pid := os.fork()) == 0: os.setsid(); os.write(door, b'0'); os.execlp('sleep', 'sleep', '100')\n"
        "while open(f'/proc/{pid}/comm').read() != 'sleep\\n': pass\n"
        "print(pid, flush=True); input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        left = os.pidfd_open(int(owner.stdout.readline()))
        owner.send_signal(signal.SIGKILL)
        owner.wait(20)
    try:
        (place,) = {hierarchy.parent for hierarchy in find_hierarchies()}
        folder = next(place.glob(f"{PREFIX}{owner.pid}-*"))
        remove_dead(place)
        assert select.select([left], [], [], 20)[0], "it has been ended"
        while folder.exists():  # The kernel lets go of the last one a moment after its end.
            remove_dead(place)
    finally:
        os.close(left)
