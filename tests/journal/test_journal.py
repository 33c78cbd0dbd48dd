from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import stat
import subprocess
import sys
import threading
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest

from etude.journal import Journal, JournalError, read_journal


class Colour(StrEnum):
    RED = "red"


def test_events_metrics_and_progress_come_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", "trainer")
    journal.event("stage_started", kind="odd", path=tmp_path, colour=Colour.RED, count=np.int64(3))
    journal.metrics(step=2, loss=np.float32(0.5), norm=float("inf"), nested={"a": [float("nan")]})
    journal.progress("sft", 3, 10, rate=1.5, unit="steps/s")
    entries = list(read_journal(tmp_path / "journal"))
    assert [entry.kind for entry in entries] == ["stage_started", "metrics", "progress"]
    assert {(entry.process, entry.pid) for entry in entries} == {("trainer", os.getpid())}
    assert entries[0].fields == {"kind": "odd", "path": str(tmp_path), "colour": "red", "count": 3}
    assert entries[1].fields == {"step": 2, "loss": 0.5, "norm": "inf", "nested": {"a": ["nan"]}}
    assert entries[2].fields == {"stage": "sft", "done": 3, "total": 10, "rate": 1.5, "unit": "steps/s"}


def test_folders_and_files_are_private(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "journal", "driver")
    for path, mode in ((tmp_path / "run", 0o700), (journal.folder, 0o700), (journal.path, 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_every_journal_has_its_own_file(tmp_path: Path) -> None:
    first, second = Journal(tmp_path, "engine"), Journal(tmp_path, "engine")
    copy = pickle.loads(pickle.dumps(first))
    for journal in (first, second, copy):
        journal.event("hello")
    assert len({first.path, second.path, copy.path}) == 3
    assert len(list(read_journal(tmp_path))) == 3


def _write_from_fork(journal: Journal) -> None:
    journal.event("child")


def test_a_forked_child_writes_its_own_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "worker")
    journal.event("parent")
    child = multiprocessing.get_context("fork").Process(target=_write_from_fork, args=(journal,))
    child.start()
    child.join(20)
    journal.event("parent")
    written = [(entry.kind, entry.pid) for entry in read_journal(tmp_path)]
    assert sorted(written) == sorted([("parent", os.getpid()), ("child", child.pid), ("parent", os.getpid())])


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "engine")
    threads = [
        threading.Thread(target=lambda: [journal.event("e", text="x" * 200) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = list(read_journal(tmp_path))
    assert len(entries) == 200
    assert [e.time for e in entries] == sorted(e.time for e in entries)


KILLED = """
import sys, pathlib
from etude.journal import Journal
journal = Journal(pathlib.Path(sys.argv[1]), "trainer")
for n in range(100_000):
    journal.event("step", n=n)
    print(n, flush=True)
"""


def test_a_kill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(20)]
    process.kill()
    told += [int(line) for line in process.stdout if line.endswith("\n")]
    process.wait()
    process.stdout.close()
    numbers = [entry.fields["n"] for entry in read_journal(tmp_path)]
    assert numbers[: len(told)] == told


FULL = """
import resource, signal, sys, pathlib
from etude.journal import Journal, JournalError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(pathlib.Path(sys.argv[1]), "trainer")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
refused = 0
for n in range(50):
    try:
        journal.event("step", n=n)
    except JournalError as error:
        refused += 1
        assert "cannot write journal" in str(error) and "\\n" not in str(error), error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.event("after", refused=refused)
"""


def test_a_write_that_fails_half_way_is_an_error_and_leaves_no_half_line(tmp_path: Path) -> None:
    """A limit on the file's size cuts a write short, as a disk that fills up does."""
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], check=True)
    *steps, after = read_journal(tmp_path)
    assert 0 < len(steps) < 50
    assert after.fields == {"refused": 50 - len(steps)}


def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "trainer")
    os.dup2(os.open("/dev/full", os.O_WRONLY), journal._descriptor)
    with pytest.raises(JournalError, match="the disk is full; free some space"):
        journal.event("lost")
    journal.close()


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="process name"):
        Journal(tmp_path, "../x")
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot open a journal"):
        Journal(tmp_path / "file", "x")
    journal = Journal(tmp_path / "j", "x")
    with pytest.raises(TypeError, match="cannot hold a object"):
        journal.event("odd", value=object())
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.event("late")
    assert json.dumps([entry.kind for entry in read_journal(tmp_path / "j")]) == "[]"
