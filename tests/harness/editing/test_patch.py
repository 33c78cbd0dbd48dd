"""The patch dialect: whatever changes a file can be said in it, and what does not fit changes nothing."""

from __future__ import annotations

import difflib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.harness.editing.patch import BadPatch, apply_patch, parse_patch

LINES = st.lists(st.sampled_from(["a", "b", "    c", "", "def f():", "x = 1"]), max_size=12)


def patched(text: str, files: dict[str, str]) -> dict[str, str | None]:
    return apply_patch(parse_patch(f"*** Begin Patch\n{text}\n*** End Patch"), files)


@given(LINES, LINES)
def test_any_change_of_a_file_can_be_said_as_one_hunk(before: list[str], after: list[str]) -> None:
    """With the whole file as context, so that the place is no question."""
    body = [line for line in difflib.ndiff(before, after) if not line.startswith("?")]
    hunk = "\n".join(f"{line[0]}{line[2:]}" for line in body)
    old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    if not body:
        return
    assert patched(f"*** Update File: a.py\n@@\n{hunk}", {"a.py": old}) == {"a.py": new}


def test_files_come_go_and_move() -> None:
    patch = """*** Add File: new.py
+x = 1
+
+y = 2
*** Delete File: old.py
*** Update File: here.py
*** Move to: there/here.py
@@
-one
+two"""
    files = {"old.py": "gone\n", "here.py": "zero\none\n", "other.py": "stays\n"}
    after = patched(patch, files)
    assert after == {"new.py": "x = 1\n\ny = 2\n", "old.py": None, "here.py": None, "there/here.py": "zero\ntwo\n"}


CODE = """def one():
    x = 1
    return x


def two():
    x = 1
    return x
"""


def test_a_hunk_is_found_behind_the_lines_named_and_behind_the_hunk_before() -> None:
    named = "*** Update File: a.py\n@@ def two():\n-    x = 1\n+    x = 2"
    assert patched(named, {"a.py": CODE}) == {"a.py": "x = 2".join(CODE.rsplit("x = 1", 1))}
    both = "*** Update File: a.py\n@@\n-    x = 1\n+    x = 3\n@@\n-    x = 1\n+    x = 4"
    assert patched(both, {"a.py": CODE}) == {"a.py": CODE.replace("x = 1", "x = 3", 1).replace("x = 1", "x = 4")}
    last = "*** Update File: a.py\n@@\n     return x\n+# the end\n*** End of File"
    assert patched(last, {"a.py": CODE}) == {"a.py": f"{CODE}# the end\n"}


def test_white_space_may_differ_where_the_place_is_clear() -> None:
    files = {"a.py": "if x:   \n\treturn 1\n"}
    patch = "*** Update File: a.py\n if x:\n-    return 1\n+\treturn 2"
    assert patched(patch, files) == {"a.py": "if x:   \n\treturn 2\n"}, "what stays, stays as it is"
    with pytest.raises(BadPatch, match="2 places"):
        patched("*** Update File: a.py\n-x\n+y", {"a.py": " x\n  x\n"})


def test_a_file_without_a_last_newline_keeps_it_so() -> None:
    assert patched("*** Update File: a.py\n-x\n+y", {"a.py": "w\nx"}) == {"a.py": "w\ny"}


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ("*** Update File: a.py\n-nothing like it\n+y", "no such lines"),
        ("*** Update File: b.py\n-x\n+y", "no file 'b.py'"),
        ("*** Add File: a.py\n+x", "exists already"),
        ("*** Update File: a.py\n*** Move to: c.py\n-x\n+y", "exists already"),
        ("*** Delete File: b.py", "no file 'b.py'"),
        ("*** Update File: a.py", "nothing is changed"),
        ("*** Update File: a.py\n@@ def nowhere():\n-x\n+y", "no line 'def nowhere"),
        ("*** Update File: a.py\nx\n+y", "line 3 of the patch"),
        ("*** Delete File: a.py\n-x", "line 3 of the patch"),
        ("x", "line 2 of the patch"),
        ("", "names no file|not allowed"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(patch: str, problem: str) -> None:
    with pytest.raises(BadPatch, match=problem):
        patched(patch, {"a.py": "x\n", "c.py": "x\n"})


@pytest.mark.parametrize("text", ["", "*** Begin Patch", "*** Update File: a\n*** End Patch", "*** Begin Patch\nx"])
def test_an_envelope_is_whole(text: str) -> None:
    with pytest.raises(BadPatch, match="a patch"):
        parse_patch(text)


@given(st.text(alphabet="*+-@ \nabFilePtchUdBgnED:", max_size=200))
def test_any_text_is_a_patch_or_refused(text: str) -> None:
    with suppress(BadPatch):
        apply_patch(parse_patch(text), {"a": "x\n"})
