from __future__ import annotations

import contextlib
import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.editing.diff import unified_diff
from etude.tasks.diff import Bounds, DiffError, apply_diff, split_lines

LINES = st.lists(
    st.sampled_from(["a", "b", "-- a/x", "++ b/x", "@@ -1 +1 @@", "", " ", "x\r", "é\x0c", "\\ No"]), max_size=12
)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(["", "\n"]))
TREES = st.dictionaries(st.sampled_from(["a.py", "b c.py", "d/e.py", "d/f.py"]), TEXTS, max_size=4)


@given(TREES, TREES)
def test_the_diff_of_two_trees_turns_one_into_the_other(before: dict[str, str], after: dict[str, str]) -> None:
    diff = unified_diff(
        {path: text.encode() for path, text in before.items()}, {path: text.encode() for path, text in after.items()}
    )
    assert apply_diff(before, diff) == after


@given(TEXTS, TEXTS, st.integers(0, 5))
def test_any_amount_of_context_applies(old: str, new: str, context: int) -> None:
    lines = list(difflib.unified_diff(split_lines(old), split_lines(new), "a/f", "b/f", n=context))
    diff = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    assert apply_diff({"f": old}, diff)["f"] == new


@given(st.text(st.sampled_from("ab/-+@ 0123,\n\\"), max_size=60))
def test_garbage_is_refused_or_applied_but_nothing_else(diff: str) -> None:
    with contextlib.suppress(DiffError):
        apply_diff({"a": "a\nb\n"}, "--- a/a\n+++ b/a\n" + diff)


CHANGE = "@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("diff", "problem"),
    [
        (f"--- a/../f\n+++ b/../f\n{CHANGE}", "leaves the workspace"),
        (f"--- a//etc/f\n+++ b//etc/f\n{CHANGE}", "leaves the workspace"),
        ("--- /dev/null\n+++ b/.git/hooks/pre\n@@ -0,0 +1 @@\n+x\n", "leaves the workspace"),
        (f"--- /etc/passwd\n+++ /etc/passwd\n{CHANGE}", "begins with"),
        (f"--- a/f\n+++ b/g\n{CHANGE}", "renamed"),
        (f"--- a/f\n+++ b/f\n{CHANGE}--- a/f\n+++ b/f\n{CHANGE}", "twice"),
        (
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n",
            "plain text files",
        ),
        ("diff --git a/f b/f\nold mode 100644\nnew mode 100777\n", "plain text files"),
        ("diff --git a/f b/f\nold mode 100644\nnew mode 160000\n", "plain text files"),
        (f"diff --git a/f b/f\nnew file mode 100755\n--- a/f\n+++ b/f\n{CHANGE}", "disagree"),
        (f"diff --git a/f b/f\ndeleted file mode 100644\n--- a/f\n+++ b/f\n{CHANGE}", "disagree"),
        ("--- /dev/null\n+++ b/" + "é" * 128 + "\n@@ -0,0 +1 @@\n+b\n", "more than 255 bytes"),
        ("diff --git a/f b/f\nGIT binary patch\n", "plain text files"),
        ("Binary files a/f and b/f differ\n", "file header"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-c\n+b\n", "does not match"),
        ("--- a/f\n+++ b/f\n@@ -2 +2 @@\n-a\n+b\n", "does not match"),
        ("--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-a\n+b\n", "too early"),
        (f"--- a/f\n+++ b/f\n{CHANGE}"[:-1], "newline"),
        ("--- a/no\n+++ b/no\n@@ -1 +1 @@\n-a\n+b\n", "not in the workspace"),
        ("--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+b\n", "exists already"),
        ("--- /dev/null\n+++ b/f/g\n@@ -0,0 +1 @@\n+b\n", "a file and a folder"),
        ("--- /dev/null\n+++ b/big\n@@ -0,0 +1 @@\n+" + "b" * 50 + "\n", "larger than 40"),
    ],
)
def test_hostile_diffs_are_refused(diff: str, problem: str) -> None:
    with pytest.raises(DiffError, match=problem):
        apply_diff({"f": "a\n"}, diff, Bounds(file_bytes=40))


def test_bounds_on_the_whole_diff() -> None:
    many = "".join(f"--- /dev/null\n+++ b/{n}\n@@ -0,0 +1 @@\n+x\n" for n in range(4))
    with pytest.raises(DiffError, match="more than 3 files"):
        apply_diff({}, many, Bounds(files=3))
    with pytest.raises(DiffError, match="larger than 20 bytes"):
        apply_diff({}, many, Bounds(diff_bytes=20))


@pytest.mark.parametrize("names", [" b/" * 80_000, "a" * 250_000, " " * 250_000, "b/" * 120_000])
def test_a_header_is_read_in_linear_time(names: str) -> None:
    """Looking for the place where two equal names meet took minutes."""
    with pytest.raises(DiffError):
        apply_diff({}, f"diff --git a/{names}\n")
