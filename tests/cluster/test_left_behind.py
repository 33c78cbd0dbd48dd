"""What a cluster of processes leaves behind, however its driver ends; and where it listens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from etude.cluster import guardian

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("processes", pytest.param("ray", marks=pytest.mark.slow))
GONE_SECONDS = 30
"""How long after a driver's death something of its cluster may still be there."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A driver's own, since whoever opens a cluster sweeps what a dead one left beside it; short, for ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="e-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def drive(tmp_path: Path, temporary: Path, backend: str, *words: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.driver", str(tmp_path), backend, *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    line = driver.stdout.readline()
    if not line:
        raise AssertionError(driver.communicate()[1])
    return driver, json.loads(line)


def family(driver: subprocess.Popen[str]) -> list[str]:
    found = [guardian.identity(child.pid) for child in psutil.Process(driver.pid).children(recursive=True)]
    return [who for who in found if who is not None]


def shared_memory(processes: list[str]) -> set[Path]:
    """What they have mapped of it by a name that is still there."""
    found = set()
    for who in processes:
        with suppress(OSError):  # Some of the family only help it to start.
            fields = [line.split(maxsplit=5) for line in Path(f"/proc/{who.split()[0]}/maps").read_text().splitlines()]
            found |= {Path(words[5]) for words in fields if words[5:] and words[5].startswith("/dev/shm/")}
    return {path for path in found if path.exists() and not path.is_relative_to(sys.prefix)}


def ports(processes: list[str]) -> set[str]:
    found = set()
    for who in processes:
        with suppress(psutil.NoSuchProcess):  # Some of the family only help it to start.
            for connection in psutil.Process(int(who.split()[0])).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add(connection.laddr.ip)
    return found


def naming(folder: Path) -> list[str]:
    """Command lines that name a folder."""
    commands = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            commands.append(" ".join(process.cmdline()))
    return [command for command in commands if str(folder) in command]


def left_of(family: list[str], folder: Path) -> list[str]:
    """Once nothing is left, or the time that it has is over."""
    until = time.monotonic() + GONE_SECONDS
    while left := [*filter(guardian.alive, family), *([str(folder)] if folder.exists() else [])]:
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    return left


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_left_when_the_driver_is_killed(tmp_path: Path, temporary: Path, backend: str) -> None:
    driver, facts = drive(tmp_path, temporary, backend)
    folder, mine = Path(facts["folder"]), family(driver)
    try:
        assert facts["pid"] in {int(who.split()[0]) for who in mine}
        assert facts["mark"] == "7", "services see the environment they were given"
        assert facts["token"] is None, "the key to the cluster is not in a service's environment"
        assert folder.stat().st_mode & 0o077 == 0
        assert ports(mine) <= ({"127.0.0.1", "::ffff:127.0.0.1"} if backend == "ray" else set())
        log = tmp_path / "logs" / "echo.log"
        assert log.exists()
        shared = shared_memory(mine)
    finally:
        driver.kill()
        driver.communicate()
    assert left_of(mine, folder) == []
    assert [path for path in shared if path.exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "seconds"),
    [*(("ray", seconds) for seconds in (1.0, 1.6, 2.2, 2.8, 3.4, 4.0)), ("processes", 0.6), ("processes", 0.9)],
)
def test_nothing_is_left_when_the_driver_is_killed_while_the_cluster_starts(
    tmp_path: Path, temporary: Path, backend: str, seconds: float
) -> None:
    """Ray's processes make their folder when they begin: one that began at the driver's death would bring it back."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.driver", str(tmp_path), backend],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
    )
    time.sleep(seconds)
    driver.kill()
    driver.wait()
    until = time.monotonic() + GONE_SECONDS
    while (left := [*temporary.iterdir(), *naming(temporary)]) and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(1)
    assert [*left, *temporary.iterdir(), *naming(temporary)] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_leaves_nothing_and_the_driver_is_quiet(tmp_path: Path, temporary: Path, backend: str) -> None:
    driver, facts = drive(tmp_path, temporary, backend, "close")
    mine = family(driver)
    out, err = driver.communicate("\n", timeout=120)
    assert driver.returncode == 0, err
    assert left_of(mine, Path(facts["folder"])) == []
    assert out == ""
    assert err == ""


@pytest.mark.slow
def test_the_next_start_sweeps_what_a_killed_guardian_left(tmp_path: Path, temporary: Path) -> None:
    driver, facts = drive(tmp_path, temporary, "ray")
    folder, mine = Path(facts["folder"]), family(driver)
    watchers = [p for p in psutil.Process(driver.pid).children() if "guardian.py" in " ".join(p.cmdline())]
    assert len(watchers) == 1
    os.kill(watchers[0].pid, signal.SIGKILL)
    driver.kill()
    driver.communicate()
    time.sleep(1)
    assert folder.exists()
    second, _ = drive(tmp_path, temporary, "processes", "close")
    second.communicate("\n", timeout=120)
    assert left_of(mine, folder) == []
