from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from etude.sandbox.inside import walk
from etude.sandbox.inside.removal import remove_tree


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: on a disk, making so many folders takes its time."""
    place = tempfile.mkdtemp(prefix="etude-", dir="/dev/shm")
    yield Path(place)
    remove_tree(place)


def nest(top: Path, depth: int, name: str, *, closed: bool = False) -> None:
    """Folders in folders, each with a file, deeper than any path can say."""
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        os.close(os.open("file", os.O_CREAT, dir_fd=folder))
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        if closed:
            os.fchmod(folder, 0)
        os.close(folder)
        folder = below
    os.close(folder)


@pytest.mark.parametrize(("depth", "name"), [(4_000, "d"), (300, "long" * 60)])
@pytest.mark.parametrize("closed", [False, True])
def test_any_depth_is_removed(tmp_path: Path, depth: int, name: str, closed: bool) -> None:
    (tmp_path / "kept").write_text("kept")
    nest(tmp_path / "top", depth, name, closed=closed)
    (tmp_path / "top").chmod(0o700)
    (tmp_path / "top" / "link").symlink_to(tmp_path)
    remove_tree(str(tmp_path / "top"))
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_what_is_no_folder_and_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("file", "link", "nothing"):
        if name == "file":
            (tmp_path / name).write_text("x")
        if name == "link":
            (tmp_path / name).symlink_to("folder")
        remove_tree(str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("closed", [False, True])
def test_several_janitors_leave_nothing_and_do_not_fail(tmp_path: Path, closed: bool) -> None:
    for turn in range(20):
        top = tmp_path / f"top-{turn}"
        for branch in ("a", "b"):
            nest(tmp_path / branch, 60, "long" * 60, closed=closed)
        top.mkdir()
        for branch in ("a", "b"):
            (tmp_path / branch).chmod(0o700)
            (tmp_path / branch).rename(top / branch)
        with ThreadPoolExecutor(3) as janitors:
            list(janitors.map(remove_tree, [str(top)] * 3))
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_janitor_opened_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, opened = tmp_path / "top", walk.open_below
    top.mkdir(0o700)
    refused = [""]

    def open_below(number: int, path: str) -> int:
        if path in refused:
            refused.remove(path)
            raise PermissionError(errno.EACCES, "closed until just now", path)
        return opened(number, path)

    monkeypatch.setattr(walk, "open_below", open_below)
    remove_tree(str(top))
    assert not top.exists()
    assert not refused
