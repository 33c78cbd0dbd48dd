from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.cluster import guardian, private_folder

PATIENCE = 120.0
SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cluster's, which this process owns."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    guardian.claim(folder)
    return folder


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SLEEPS])


def test_a_recorded_process_is_ended_and_the_folder_removed(folder: Path) -> None:
    assert guardian.owner_alive(folder)
    process = sleeper()
    guardian.record(folder, process.pid)
    assert guardian.sweep(folder) == []
    assert process.wait(PATIENCE) == -9
    assert not folder.exists()


def test_a_pid_that_was_given_to_another_process_is_spared(folder: Path) -> None:
    process = sleeper()
    try:
        pid, ticks, boot = (guardian.identity(process.pid) or "").split()
        lines = [f"{pid} {int(ticks) - 1} {boot}", f"{pid} {ticks} another-boot", "torn 12"]
        (folder / guardian.PROCESSES).write_text("\n".join(lines))
        assert guardian.sweep(folder) == []
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_process_that_works_in_the_folder_is_ended_and_cannot_bring_it_back(folder: Path) -> None:
    other, log = folder.with_name("cluster-of-another"), folder / "agent.log"
    again = "import pathlib, sys, time\nwhile True: pathlib.Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)"
    starting = subprocess.Popen([sys.executable, "-c", again, str(folder / "ray")])
    with log.open("w") as file:
        titled = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=file)
    stranger = subprocess.Popen([sys.executable, "-c", SLEEPS, str(other / "ray")])
    try:
        assert guardian.sweep(folder) == []
        assert [starting.wait(PATIENCE), titled.wait(PATIENCE)] == [-9, -9]
        assert not folder.exists()
        assert stranger.poll() is None
    finally:
        for process in (starting, titled, stranger):
            process.kill()
            process.wait()


def test_the_guardian_sweeps_once_its_pipe_closes(folder: Path) -> None:
    process = sleeper()
    guardian.record(folder, process.pid)
    watcher = subprocess.Popen([sys.executable, "-I", "-S", guardian.__file__, str(folder)], stdin=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.wait(0.3)
    assert process.poll() is None
    assert watcher.stdin is not None
    watcher.stdin.close()
    assert watcher.wait(PATIENCE) == 0
    assert process.wait(PATIENCE) == -9
    assert not folder.exists()


def test_a_dead_owner_is_seen(tmp_path: Path) -> None:
    process = sleeper()
    (tmp_path / guardian.OWNER).write_text(f"{guardian.identity(process.pid)}\n")
    assert guardian.owner_alive(tmp_path)
    process.kill()
    process.wait()
    assert not guardian.owner_alive(tmp_path)
    assert guardian.identity(process.pid) is None


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that is short enough for ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="e-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_the_next_start_sweeps_what_a_dead_driver_left_and_nothing_else(temporary: Path) -> None:
    """Not what another driver is just making, or removing: it works in its folder, and would be ended."""
    process = sleeper()
    dead, making, empty = (temporary / f"etude-run-{name}" for name in ("dead", "making", "empty"))
    for folder in (dead, making, empty):
        folder.mkdir()
    (dead / guardian.OWNER).write_text(f"{guardian.identity(process.pid)}\n")
    process.kill()
    process.wait()
    (making / guardian.OWNER).touch()
    (temporary / "etude-run-gone").symlink_to(temporary / "closed meanwhile")
    (temporary / "etude-run-file").touch()
    with (making / "log").open("w") as log:
        other = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=log)
    try:
        mine = private_folder.private_folder()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert guardian.owner_alive(mine)
    left = {path for path in temporary.iterdir() if path.is_dir()}
    assert left == {mine, making, empty}
