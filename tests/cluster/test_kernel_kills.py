"""A service that the kernel kills for lack of memory, in a control group that really has too little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from etude.cluster.kernel_kills import KernelKills

GROUPS = Path("/sys/fs/cgroup/memory")
CHILD = """
import asyncio, os, sys
from pathlib import Path
Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))
from etude.cluster import ClusterError, open_cluster

async def main():
    cluster = await open_cluster('processes', run_folder=Path(sys.argv[2]))
    try:
        await cluster.start('hungry', 'tests.cluster.test_kernel_kills:Hungry', deadline=60.0)
    except ClusterError as error:
        print(error)
    finally:
        await cluster.close()

asyncio.run(main())
"""


class Hungry:
    def __init__(self) -> None:
        self.eaten = b"x" * 2**31


@pytest.mark.skipif(not os.access(GROUPS / "cgroup.procs", os.W_OK), reason="needs control groups of its own")
def test_a_service_that_the_kernel_killed_is_said_to_be(tmp_path) -> None:
    group = GROUPS / f"etude-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(2**29))
        command = [sys.executable, "-c", CHILD, str(group), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        group.rmdir()
    assert "hungry died; it was asked for __init__ (its process is gone: the kernel killed it for lack of memory" in (
        done.stdout
    ), done.stderr
    assert "etude run RECIPE --dry-run" in done.stdout


def test_a_death_without_a_kill_says_nothing_of_memory() -> None:
    now = KernelKills.count()
    assert KernelKills(now.group + 1, now.machine + 1_000_000).since() == ""
    assert KernelKills(now.group, -1).since().startswith("perhaps killed by the kernel")
