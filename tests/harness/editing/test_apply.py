"""What lies in the way of an agent's changes is left alone, and nothing else is written either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.hostile import snapshot

from etude.harness import ApplyConflict
from etude.harness.editing.apply import write_changes

WAYS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "deleted": ("old.txt", lambda folder: (folder / "old.txt").unlink()),
    "made": ("new.txt", lambda folder: (folder / "new.txt").write_text("of the user\n")),
    "linked": ("sub/new.txt", lambda folder: (folder / "sub").symlink_to(folder.parent / "elsewhere")),
    "folder in the way": ("new.txt", lambda folder: (folder / "new.txt").mkdir()),
    "file in the way": ("sub/new.txt", lambda folder: (folder / "sub").write_text("of the user\n")),
}


@pytest.mark.parametrize("meanwhile", WAYS)
def test_whatever_lies_in_the_way_is_left_alone(tmp_path: Path, meanwhile: str) -> None:
    name, happens = WAYS[meanwhile]
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    for free in ("old.txt", "free.txt"):
        (folder / free).write_text("old\n")
    happens(folder)
    before = snapshot(tmp_path)
    start = {"old.txt": b"old\n", "free.txt": b"old\n"}
    with pytest.raises(ApplyConflict, match=name):
        write_changes(folder, start, {"free.txt": b"agent's\n", name: b"agent's\n"})
    assert snapshot(tmp_path) == before
