from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from etude.cluster import guardian


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_recorded_process_is_ended_and_the_folder_removed(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    guardian.own(folder)
    assert guardian.owner_alive(folder)
    process = sleeper()
    guardian.record(folder, process.pid)
    assert guardian.sweep(folder) == []
    assert process.wait(5) == -9
    assert not folder.exists()


def test_a_pid_that_was_given_to_another_process_is_spared(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    guardian.own(folder)
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


def test_a_process_that_works_in_the_folder_is_ended_and_cannot_bring_it_back(tmp_path: Path) -> None:
    folder, other = tmp_path / "cluster", tmp_path / "cluster-of-another"
    log = folder / "logs" / "agent.log"
    log.parent.mkdir(parents=True)
    guardian.own(folder)
    again = "import pathlib, sys, time\nwhile True: pathlib.Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)"
    starting = subprocess.Popen([sys.executable, "-c", again, str(folder / "ray")])
    with log.open("w") as file:
        titled = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=file)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(other / "ray")])
    try:
        assert guardian.sweep(folder) == []
        assert [starting.wait(5), titled.wait(5)] == [-9, -9]
        assert not folder.exists()
        assert stranger.poll() is None
    finally:
        for process in (starting, titled, stranger):
            process.kill()
            process.wait()


def test_the_guardian_sweeps_once_its_pipe_closes(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    guardian.own(folder)
    process = sleeper()
    guardian.record(folder, process.pid)
    watcher = subprocess.Popen([sys.executable, "-I", "-S", guardian.__file__, str(folder)], stdin=subprocess.PIPE)
    time.sleep(0.3)
    assert watcher.poll() is None
    assert process.poll() is None
    assert watcher.stdin is not None
    watcher.stdin.close()
    assert watcher.wait(15) == 0
    assert process.wait(5) == -9
    assert not folder.exists()


def test_a_dead_owner_is_seen(tmp_path: Path) -> None:
    process = sleeper()
    (tmp_path / guardian.OWNER).write_text(f"{guardian.identity(process.pid)}\n")
    assert guardian.owner_alive(tmp_path)
    process.kill()
    process.wait()
    assert not guardian.owner_alive(tmp_path)
    assert guardian.identity(process.pid) is None
