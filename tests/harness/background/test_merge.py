"""The merge by lines: its laws, and git's own beside it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.background import merge

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "}"]), max_size=12)
TEXTS = st.builds(lambda lines, end: ("\n".join(lines) + end).encode(), LINES, st.sampled_from(["", "\n"]))


@given(TEXTS, TEXTS)
def test_what_one_side_or_both_alike_changed_is_taken(start: bytes, changed: bytes) -> None:
    assert merge(start, changed, start) == changed
    assert merge(start, start, changed) == changed
    assert merge(start, changed, changed) == changed


@given(TEXTS, TEXTS, TEXTS)
def test_it_does_not_matter_who_is_who(start: bytes, ours: bytes, theirs: bytes) -> None:
    assert merge(start, ours, theirs) == merge(start, theirs, ours)


@given(st.integers(2, 12), st.data())
def test_changes_with_an_untouched_line_between_them_are_both_kept(size: int, data: st.DataObject) -> None:
    """Each line is changed, deleted or doubled by one side at most, and no two touched ones of different sides lie
    side by side: then the result is known without any merge."""
    whose = data.draw(st.lists(st.sampled_from(["none", "ours", "theirs"]), min_size=size, max_size=size))
    for n in range(1, size):
        if {whose[n - 1], whose[n]} == {"ours", "theirs"}:
            whose[n] = "none"
    how = data.draw(st.lists(st.sampled_from(["change", "delete", "double"]), min_size=size, max_size=size))

    def text(sides: set[str]) -> bytes:
        lines = []
        for n, (side, what) in enumerate(zip(whose, how, strict=True)):
            line = [f"line {n}"]
            if side in sides:
                line = {"change": [f"new {n}"], "delete": [], "double": [f"line {n}", f"more {n}"]}[what]
            lines += line
        return "".join(f"{line}\n" for line in lines).encode()

    assert merge(text(set()), text({"ours"}), text({"theirs"})) == text({"ours", "theirs"})


@pytest.mark.parametrize(
    ("start", "ours", "theirs"),
    [
        (b"a\nb\n", b"x\nb\n", b"y\nb\n"),
        (b"a\nb\n", b"x\nb\n", b"a\ny\n"),
        (b"a\n", b"a\nx\n", b"a\ny\n"),
        (b"a\nb\n", b"a\nx\nb\n", b"a\n"),
        (b"a\nb", b"a\nb\n", b"a\nc"),
        (b"a\nb\nc\n", b"", b"a\nB\nc\n"),
        (b"\0one", b"\0two", b"\0three"),
        (b"\xff\na\nb\nc\n", b"\xff\nA\nb\nc\n", b"\xff\na\nb\nC\n"),
    ],
    ids=["one line", "neighbours", "both append", "beside a deletion", "the end", "all gone", "binary", "no UTF-8"],
)
def test_what_touches_is_a_conflict(start: bytes, ours: bytes, theirs: bytes) -> None:
    assert merge(start, ours, theirs) is None


def test_ends_of_lines_stay_as_they_are() -> None:
    assert merge(b"a\r\nb\r\nc\r\n", b"A\r\nb\r\nc\r\n", b"a\r\nb\r\nc\r\nd") == b"A\r\nb\r\nc\r\nd"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")
def test_git_agrees(tmp_path: Path) -> None:
    """On lines that are all different, where there is one way only to lay the texts beside one another."""
    start = [f"line {n}\n" for n in range(12)]
    for ours_at in (0, 3, 4, 11):
        for theirs_at in (0, 2, 3, 5, 11):
            for mine in ([], ["new\n"], [start[ours_at], "more\n"]):
                texts = {
                    "ours": start[:ours_at] + mine + start[ours_at + 1 :],
                    "start": start,
                    "theirs": [*start[:theirs_at], "other\n", *start[theirs_at + 1 :]],
                }
                for name, lines in texts.items():
                    (tmp_path / name).write_text("".join(lines))
                git = subprocess.run(["git", "merge-file", "-p", *texts], cwd=tmp_path, capture_output=True)
                found = merge(*("".join(texts[name]).encode() for name in ("start", "ours", "theirs")))
                assert found == (git.stdout if git.returncode == 0 else None), texts
