"""A change meets a folder that has moved on: every case, and nothing is written unless all of it can be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from etude.harness import ApplyConflict
from etude.harness.background import Fit, count_lines, plan_steps, preview, write_steps
from etude.harness.workspaces.workspace import TOO_LARGE

TEXT = b"one\ntwo\nthree\nfour\n"
TOP, END = TEXT.replace(b"one", b"ONE"), TEXT.replace(b"four", b"FOUR")
CASES = {
    "untouched": (TEXT, TOP, TEXT, Fit.WRITES),
    "new": (None, TOP, None, Fit.WRITES),
    "deleted": (TEXT, None, TEXT, Fit.WRITES),
    "has it": (TEXT, TOP, TOP, Fit.THERE),
    "both deleted": (TEXT, None, None, Fit.THERE),
    "other lines": (TEXT, TOP, END, Fit.MERGES),
    "same lines": (TEXT, TOP, TEXT.replace(b"one", b"1"), Fit.CONFLICTS),
    "gone": (TEXT, TOP, None, Fit.CONFLICTS),
    "deletes what changed": (TEXT, None, END, Fit.CONFLICTS),
    "both new": (None, TOP, END, Fit.CONFLICTS),
    "binary": (b"\0a", b"\0b", b"\0c", Fit.CONFLICTS),
}


def laid(folder: Path, content: bytes | None) -> Path:
    if content is not None:
        (folder / "file").write_bytes(content)
    return folder


def read(folder: Path) -> bytes | None:
    return (folder / "file").read_bytes() if (folder / "file").exists() else None


@pytest.mark.parametrize(("before", "now", "found", "fit"), CASES.values(), ids=CASES)
def test_how_a_change_fits(tmp_path: Path, before, now, found, fit: Fit) -> None:
    planned = plan_steps(laid(tmp_path, found), {"file": (before, now)})
    assert [step.fit for step in planned] == [fit]
    assert read(tmp_path) == found, "looking writes nothing"
    if fit is Fit.CONFLICTS:
        with pytest.raises(ApplyConflict, match="nothing was written: file "):
            write_steps(tmp_path, planned, merging=True)
        assert read(tmp_path) == found
        return
    if fit is Fit.MERGES:
        with pytest.raises(ApplyConflict, match="file changed meanwhile in other lines; --dry-run"):
            write_steps(tmp_path, planned, merging=False)
        assert read(tmp_path) == found
    assert write_steps(tmp_path, planned, merging=True) == ["file"]
    assert read(tmp_path) == (TOP.replace(b"four", b"FOUR") if fit is Fit.MERGES else now)


def test_a_conflict_anywhere_writes_nothing_anywhere(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"theirs")
    planned = plan_steps(laid(tmp_path, TEXT), {"file": (TEXT, TOP), "other": (b"start", b"ours")})
    with pytest.raises(ApplyConflict, match="other was changed meanwhile in the same lines"):
        write_steps(tmp_path, planned, merging=True)
    assert read(tmp_path) == TEXT
    chosen = plan_steps(tmp_path, {"file": (TEXT, TOP), "other": (b"start", b"ours")}, ["file"])
    assert write_steps(tmp_path, chosen, merging=False) == ["file"]


def test_what_came_after_the_look_is_not_overwritten(tmp_path: Path) -> None:
    planned = plan_steps(laid(tmp_path, END), {"file": (TEXT, TOP)})
    (tmp_path / "file").write_bytes(b"newer\n")
    with pytest.raises(ApplyConflict, match="changed outside the session"):
        write_steps(tmp_path, planned, merging=True)
    assert read(tmp_path) == b"newer\n"


def test_links_and_folders_in_the_way(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "away").symlink_to(outside)
    (inside / "folder").mkdir()
    planned = plan_steps(inside, {"away/file": (None, b"x"), "folder": (None, b"x")})
    assert [(step.fit, step.why) for step in planned] == [
        (Fit.CONFLICTS, "cannot be written: away is not a folder any more"),
        (Fit.CONFLICTS, "is not a file any more"),
    ]


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(ApplyConflict, match="does not exist any more"):
        plan_steps(tmp_path / "gone", {"file": (None, b"x")})


def test_only_what_the_agent_changed_can_be_chosen(tmp_path: Path) -> None:
    with pytest.raises(ApplyConflict, match="did not change flie: expected some of file"):
        plan_steps(laid(tmp_path, TEXT), {"file": (TEXT, TOP)}, ["flie"])
    assert plan_steps(laid(tmp_path, TEXT), {"file": (TEXT, TOO_LARGE)}) == []


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {name: (None, name.encode()) for name in ("a", "b", "c")}
    planned = plan_steps(tmp_path, changes)
    written: list[Path] = []
    chmod = Path.chmod

    def full(path: Path, mode: int) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", full)
    with pytest.raises(OSError, match="No space left"):
        write_steps(tmp_path, planned, merging=False)
    assert [path for path in tmp_path.iterdir() if path not in written] == []
    assert not any((tmp_path / name).exists() for name in changes)


def test_previews_and_counts(tmp_path: Path) -> None:
    planned = plan_steps(laid(tmp_path, END), {"file": (TEXT, TOP)})
    shown = preview(planned)
    assert "-one\n+ONE\n" in shown
    assert "+FOUR" not in shown, "against what lies in the folder, not against the start"
    assert count_lines(TEXT, TOP) == (1, 1)
    assert count_lines(None, b"a\n++b\n") == (2, 0)
    assert count_lines(TEXT, None) == (0, 4)
