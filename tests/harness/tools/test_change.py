"""The tools for models that say a file's text exactly: they change what was meant, or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import parts
from tests.harness.parts import COMPACT, SAMPLE

from etude.harness import OverlayWorkspace, Toolbox, ToolCall, ToolLimits, ToolResult


class Bench(parts.Bench):
    def __init__(self, files: dict[str, bytes] = SAMPLE, **limits: Any) -> None:
        super().__init__(OverlayWorkspace(files), **limits)

    def call(self, name: str, **arguments: object) -> ToolResult:
        return asyncio.run(super().call(name, **arguments))

    def files(self) -> dict[str, bytes]:
        changed = self.workspace.changed()
        return {path: data for path, data in {**self.workspace.start, **changed}.items() if data is not None}


def test_a_piece_that_is_there_once_is_replaced_and_shown() -> None:
    bench = Bench()
    result = bench.call("replace", path="calc.py", old="min(a, b)", new="max(a, b)")
    assert result.ok
    assert result.output == (
        "The edited lines now read:\n1 # the larger of two\n2 def larger(a, b):\n3     return max(a, b)"
    )
    assert bench.files()["calc.py"] == SAMPLE["calc.py"].replace(b"min", b"max")
    assert bench.toolbox.edited == {"calc.py": 1}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("maximum", "x", "does not hold this text"),
        ("a", "x", "holds this text 4 times"),
        ("", "x", "Say a piece"),
        ("min", "min", "Say a piece"),
    ],
)
def test_a_piece_that_is_not_clear_changes_nothing(old: str, new: str, says: str) -> None:
    bench = Bench()
    result = bench.call("replace", path="calc.py", old=old, new=new)
    assert (result.ok, result.valid) == (False, True)
    assert says in result.output
    assert bench.files() == SAMPLE


def test_all_places_are_replaced_when_that_is_asked() -> None:
    bench = Bench({"a.py": b"x = x + x\n"})
    assert bench.call("replace", path="a.py", old="x", new="y", all=True).output == "Replaced in 3 places of a.py."
    assert bench.files() == {"a.py": b"y = y + y\n"}
    assert not bench.call("replace", path="a.py", old="y", new="z", all="yes").valid


def test_whole_files_are_written_moved_and_deleted() -> None:
    bench = Bench()
    assert bench.call("write", path="new/deep.py", text="x = 1\ny = 2\n").output == "new/deep.py has 2 lines now."
    assert bench.call("move", path="new/deep.py", target="top.py").output == "new/deep.py is top.py now."
    assert bench.call("delete", path="calc.py").output == "calc.py is gone."
    assert bench.files() == {**{k: v for k, v in SAMPLE.items() if k != "calc.py"}, "top.py": b"x = 1\ny = 2\n"}


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("write", {"path": "pack", "text": ""}, "'pack' is a folder"),
        ("write", {"path": "calc.py/x", "text": ""}, "a file lies on the way"),
        ("write", {"path": "../x", "text": ""}, "not a path inside"),
        ("move", {"path": "calc.py", "target": "check.py"}, "is there already"),
        ("move", {"path": "nothing", "target": "x"}, "no file 'nothing'"),
        ("move", {"path": "calc.py", "target": "check.py/x"}, "a file lies on the way"),
        ("move", {"path": "pack", "target": "x"}, "'pack' is a folder"),
        ("delete", {"path": "nothing"}, "no file 'nothing'"),
        ("delete", {"path": "pack"}, "'pack' is a folder"),
        ("patch", {"patch": "nonsense"}, "The patch was not applied"),
        ("patch", {"patch": "*** Begin Patch\n*** Add File: ../x\n+x\n*** End Patch"}, "not a path inside"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(name: str, arguments: dict[str, object], says: str) -> None:
    bench = Bench()
    result = bench.call(name, **arguments)
    assert (result.ok, result.valid) == (False, True)
    assert says in result.output
    assert bench.files() == SAMPLE


def test_a_patch_changes_everything_or_nothing() -> None:
    bench = Bench()
    fits = "*** Begin Patch\n*** Update File: calc.py\n-    return min(a, b)\n+    return max(a, b)\n"
    fits += "*** Delete File: pack/other.py\n*** Add File: pack/more.py\n+value = 2\n"
    assert not bench.call("patch", patch=f"{fits}*** Delete File: nothing\n*** End Patch").ok
    assert bench.files() == SAMPLE
    result = bench.call("patch", patch=f"{fits}*** End Patch")
    assert result.output == "Update File: calc.py\nDelete File: pack/other.py\nAdd File: pack/more.py"
    after = bench.files()
    assert (after["pack/more.py"], "pack/other.py" in after) == (b"value = 2\n", False)


def test_what_changed_since_it_was_read_is_read_again_first() -> None:
    bench = Bench()
    bench.call("read", path="calc.py")
    asyncio.run(bench.workspace.write("calc.py", SAMPLE["calc.py"] + b"# somebody else's\n"))
    for name, arguments in (
        ("replace", {"old": "min", "new": "max"}),
        ("write", {"text": "x"}),
        ("edit", {"lines": "3 return max(a, b)"}),
    ):
        assert "is not what you last read" in bench.call(name, path="calc.py", **arguments).output
    bench.call("read", path="calc.py")
    assert bench.call("replace", path="calc.py", old="min", new="max").ok
    assert bench.call("replace", path="calc.py", old="max", new="min").ok, "its own changes it knows"


def test_strictly_a_file_is_changed_only_after_it_was_read() -> None:
    bench = Bench(strict=True)
    assert "is not what you last read" in bench.call("replace", path="calc.py", old="min", new="max").output
    bench.call("read", path="calc.py")
    assert bench.call("replace", path="calc.py", old="min", new="max").ok
    assert bench.call("write", path="new.py", text="x").ok, "nothing was there to read"
    unread: list[tuple[str, dict[str, object]]] = [
        ("edit", {"path": "check.py", "lines": "1 x"}),
        ("move", {"path": "check.py", "target": "b.py"}),
        ("delete", {"path": "check.py"}),
        ("write", {"path": "check.py", "text": "x"}),
    ]
    for name, arguments in unread:
        assert "read it again before" in bench.call(name, path=arguments.pop("path"), **arguments).output
    bench.call("read", path="check.py")
    assert bench.call("delete", path="check.py").ok


def test_strictly_calls_say_exactly_what_they_mean() -> None:
    lenient, strict = Bench(), Bench(strict=True)
    patch = "*** Begin Patch\n*** Update File: calc.py\n-return min(a, b)\n+return max(a, b)\n*** End Patch"
    calls: list[tuple[str, dict[str, object]]] = [
        ("read", {"path": "calc.py", "first": None}),
        ("read", {"path": "calc.py", "last": 4}),
        ("patch", {"patch": patch}),
    ]
    for name, arguments in calls:
        strict.call("read", path="calc.py")
        assert lenient.call(name, **arguments).ok
        assert not strict.call(name, **arguments).ok
    assert strict.files() == SAMPLE


def test_a_profile_without_words_for_it_refuses() -> None:
    toolbox = Toolbox(COMPACT.schemas(), OverlayWorkspace(SAMPLE), ToolLimits(strict=True), COMPACT)
    call = ToolCall("1", "edit", {"path": "calc.py", "lines": "1 x"}, "")
    assert asyncio.run(toolbox.run(call, max_tokens=100, count=len)).output == "no"


def test_the_bound_on_edits_holds_for_every_tool_that_changes_files() -> None:
    bench = Bench(edits=1)
    assert bench.call("write", path="a.py", text="x").ok
    calls: list[tuple[str, dict[str, object]]] = [
        ("write", {"path": "a.py", "text": "y"}),
        ("replace", {"path": "calc.py", "old": "min", "new": "max"}),
        ("move", {"path": "calc.py", "target": "b.py"}),
        ("delete", {"path": "calc.py"}),
        ("edit", {"path": "calc.py", "lines": "1 x"}),
        ("patch", {"patch": "*** Begin Patch\n*** Delete File: calc.py\n*** End Patch"}),
    ]
    for name, arguments in calls:
        assert bench.call(name, **arguments).output == "No further edit is allowed; finish."
    assert bench.files() == {**SAMPLE, "a.py": b"x"}
    two = "*** Begin Patch\n*** Delete File: calc.py\n*** Delete File: check.py\n*** End Patch"
    half = Bench(edits=1)
    assert not half.call("patch", patch=two).ok
    assert half.files() == SAMPLE


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=60))
def test_replace_is_what_it_says(old: str, new: str, text: str) -> None:
    bench = Bench({"a.txt": text.encode("utf-8", "replace").replace(b"\0", b"0")})
    before = bench.files()["a.txt"].decode()
    result = bench.call("replace", path="a.txt", old=old, new=new)
    after = bench.files()["a.txt"].decode()
    if result.ok:
        assert before.count(old) == 1
        assert after == before.replace(old, new)
    else:
        assert after == before


def test_a_patch_that_leaves_no_place_for_a_file_changes_nothing() -> None:
    for first, second in (("new/a", "new"), ("new", "new/a"), ("calc.py/a", "b"), ("b", "pack")):
        bench = Bench()
        lines = [f"*** Add File: {first}", "+x", f"*** Add File: {second}", "+y"]
        refused = bench.call("patch", patch="\n".join(["*** Begin Patch", *lines, "*** End Patch"]))
        assert not refused.ok
        assert refused.valid
        assert bench.files() == SAMPLE
    lines = ["*** Add File: calc.py/a", "+y", "*** Delete File: calc.py"]
    bench = Bench()
    assert bench.call("patch", patch="\n".join(["*** Begin Patch", *lines, "*** End Patch"])).ok
    assert "calc.py" not in bench.files()
    assert bench.files()["calc.py/a"] == b"y\n"
