"""Listing below a folder: what is counted, what has gone meanwhile, and how much is too much; and ways through ".."."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from etude.sandbox.inside import files, kernel


def test_only_regular_files_count_against_the_most_that_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LISTED", 3)
    for name in ("a", "d/b", "d/e/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for number in range(5):
        (tmp_path / f"link{number}").symlink_to("a")
    assert files.list_below(str(tmp_path), ".") == ["a", "d/b", "d/e/c"]
    (tmp_path / "d/one-more").touch()
    with pytest.raises(files.Refused, match=r"more than 3 files below \."):
        files.list_below(str(tmp_path), ".")


def test_what_goes_away_while_one_looks_is_not_there(tmp_path: Path) -> None:
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for name in ("x", "y"):
                (tmp_path / name).mkdir()
                (tmp_path / name / "f").touch()
            for name in ("x", "y"):
                (tmp_path / name / "f").unlink()
                (tmp_path / name).rmdir()

    (tmp_path / "stays").touch()
    writer = threading.Thread(target=come_and_go)
    writer.start()
    try:
        for _ in range(2000):
            assert set(files.list_below(str(tmp_path), ".")) <= {"stays", "x/f", "y/f"}
    finally:
        stop.set()
        writer.join()


_RENAMES = """
import os, sys
os.mkdir("x")
print(flush=True)
while True:
    os.rename("x", "y")
    os.rename("y", "x")
"""


def test_a_way_up_is_found_while_somebody_renames(tmp_path: Path) -> None:
    """Anything, anywhere on the machine: the kernel then gives up one such way in twenty."""
    (tmp_path / "top/a/b").mkdir(parents=True)
    (tmp_path / "top/file").touch()
    command = [sys.executable, "-c", _RENAMES]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            top = os.open(tmp_path / "top", os.O_PATH)
            for _ in range(5000):
                os.close(kernel.openat2(top, "a/../a/b/../../file", os.O_RDONLY, 0, kernel.RESOLVE_BENEATH))
            os.close(top)
        finally:
            busy.kill()
