"""Patches as other tools write them, made plain without changing what they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.editing.diff import unified_diff
from etude.tasks.diff import DiffError, apply_diff, parse_diff
from etude.tasks.formats.swebench.plain_patches import plain_diff, reversed_diff

from .repository import git

LINES = st.lists(
    st.sampled_from(["a", "b", "", "-- x", "++ y", "@@ -1 +1 @@", "diff --git a/x b/x", " ", "\\"]), max_size=8
)
TEXTS = st.tuples(LINES, st.booleans()).map(lambda drawn: "\n".join(drawn[0]) + "\n" * drawn[1])
TREES = st.dictionaries(st.sampled_from(["a.txt", "d/b.txt", "c"]), TEXTS, max_size=3)


def as_bytes(tree: dict[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in tree.items()}


@given(TREES, TREES)
def test_a_plain_diff_stays_as_it_is_and_has_a_way_back(before: dict[str, str], after: dict[str, str]) -> None:
    diff = unified_diff(as_bytes(before), as_bytes(after))
    plain = plain_diff(diff, as_bytes(before).get)
    assert apply_diff(before, plain) == after
    assert apply_diff(after, reversed_diff(plain)) == before


def test_renames_copies_and_modes_as_git_writes_them(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(20))
    before = {"old name.txt": text, "kept": text * 2, "both": text * 3, "gone": "x\n", "bare": "y"}
    git(tmp_path, "init", "-q", "-b", "main")
    for name, content in before.items():
        (tmp_path / name).write_text(content)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "start")
    git(tmp_path, "mv", "old name.txt", "new.txt")
    (tmp_path / "new.txt").write_text(text.replace("line 7\n", "line seven\n\n"))
    git(tmp_path, "mv", "kept", "moved")
    (tmp_path / "copy").write_text(before["both"] + "more\n")
    (tmp_path / "both").write_text(before["both"] + "and more\n")
    (tmp_path / "gone").unlink()
    (tmp_path / "bare").write_text("y\nz")
    (tmp_path / "empty").write_text("")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "end")
    patch = git(tmp_path, "diff", "-M", "-C", "HEAD~", "HEAD")
    assert patch.count("rename from") == 2
    assert "copy from" in patch
    with pytest.raises(DiffError):
        parse_diff(patch)
    names = git(tmp_path, "ls-files", "-z").split("\0")[:-1]
    after = apply_diff(before, plain_diff(patch, as_bytes(before).get))
    assert after == {name: (tmp_path / name).read_text() for name in names}
    with pytest.raises(DiffError, match="whose contents are not known"):
        plain_diff(patch, {}.get)


def test_binary_parts_are_passed_over_only_where_they_are_known(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "start")
    (tmp_path / "picture.png").write_bytes(bytes(range(256)))
    (tmp_path / "note").write_text("n\n")
    git(tmp_path, "add", "-A")
    for flag in ("--binary", "--no-textconv"):
        patch = git(tmp_path, "diff", flag, "--cached")
        with pytest.raises(DiffError, match=r"picture.png: a binary part"):
            plain_diff(patch, {}.get)
        assert apply_diff({}, plain_diff(patch, {}.get, {"picture.png"})) == {"note": "n\n"}


def test_blank_lines_that_lost_their_blank() -> None:
    before = {"f": "a\n\nb\n"}
    stripped = "diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n\n"
    assert apply_diff(before, plain_diff(stripped, {}.get)) == {"f": "a\n\nc\n"}


def test_prose_above_the_diff_and_no_newline_below() -> None:
    told = "Here is the patch:\n\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b"
    assert apply_diff({"f": "a\n"}, plain_diff(told, {}.get)) == {"f": "b\n"}
    assert plain_diff("", {}.get) == ""


@given(st.text(max_size=200) | TEXTS)
def test_no_text_breaks_it(text: str) -> None:
    try:
        plain = plain_diff(text, {}.get)
        parse_diff(plain)
    except DiffError:
        return
    reversed_diff(plain)
