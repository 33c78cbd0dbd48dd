"""A file is what it was or all of what it is to be: after a kill, on a full disk, where nothing can be written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from etude.journal import write_atomically
from etude.journal.files import disk_problem

KILLED = """
import sys
from pathlib import Path
from etude.journal import write_atomically
for n in range(1_000_000):
    write_atomically(Path(sys.argv[1]), bytes([n % 256]) * 200_000)
    if n == 3:
        print("writing", flush=True)
"""


def test_a_file_is_made_with_its_folder_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "result.json"
    for data in (b"one", b"", b"three"):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_a_kill_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "result"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.05)
    process.kill()
    process.wait()
    process.stdout.close()
    data = path.read_bytes()
    assert len(data) == 200_000
    assert len(set(data)) == 1


def test_a_full_disk_is_an_oserror_and_leaves_what_was_there(tmp_path: Path) -> None:
    # /dev/full answers every write with ENOSPC: a real full disk without filling one.
    path = tmp_path / "result"
    write_atomically(path, b"before")
    (tmp_path / f".result.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(path, b"after")
    assert caught.value.errno == errno.ENOSPC
    assert [file.name for file in tmp_path.iterdir()] == ["result"]
    assert path.read_bytes() == b"before"


def test_the_first_error_is_the_one_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((NotADirectoryError, FileExistsError)):
        write_atomically(tmp_path / "file" / "below", b"")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "x"), "the disk is full (needs 2.5 MB); free some space and run the same command again"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (OSError("a library's own words\nand more"), "a library's own words"),
        (OSError(), "OSError"),
    ],
)
def test_what_the_disk_did_is_told_in_one_line(error: OSError, said: str) -> None:
    assert disk_problem(error, 2_500_000) == said
