"""A view of a folder whose files are read when they are asked for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.sandbox.support import in_loop
from tests.harness.search.trees import write

from etude.harness import (
    ApplyConflict,
    ChatSession,
    FolderTooLarge,
    OverlayWorkspace,
    ScriptedPolicy,
    folder_workspace,
    load_profile,
)
from etude.harness.workspaces.folder_files import FolderFiles, Layered, differing, pinned
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.sandbox.contract import RequestRefused

FULL = load_profile("full")


def session(folder: Path, steps: list[str], sandboxes: Any = None) -> ChatSession:
    harness = HarnessRecipe.model_validate({"summary_trigger": 0, "profile": "full"})
    return ChatSession(folder, ScriptedPolicy(steps, FULL), harness, SandboxRecipe.model_validate({}), sandboxes)


def test_what_was_read_stays_and_what_was_not_is_as_it_lies_there(tmp_path):
    write(tmp_path, {"a": b"1", "b": b"1", "gone": b"1", "read/gone": b"1", "grows": b"1"})
    files = FolderFiles(tmp_path)
    assert (files["a"], files["read/gone"]) == (b"1", b"1")
    write(tmp_path, {"a": b"2", "b": b"2", "later": b"2", "grows": b"x" * 1_000_001})
    (tmp_path / "gone").unlink()
    (tmp_path / "read" / "gone").unlink()
    assert {path: files.get(path) for path in ("a", "b", "gone", "read/gone", "later")} == {
        "a": b"1",
        "b": b"2",
        "gone": None,
        "read/gone": b"1",
        "later": None,
    }
    assert sorted(files) == ["a", "b", "grows", "read/gone"]
    assert files.moved() == {"a": b"1", "read/gone": b"1"}
    write(tmp_path, {"a": b"1"})
    assert files.moved() == {"read/gone": b"1"}, "another file with the same contents is no other"
    with pytest.raises(RequestRefused, match="1000001 bytes"):
        asyncio.run(OverlayWorkspace(files).read("grows"))


def test_links_caches_and_large_files_are_no_files_of_the_view(tmp_path):
    write(tmp_path, {"a": b"1", ".ci/x": b"", ".git/config": b"1", "sub/__pycache__/a": b"1"})
    write(tmp_path, {"large": b"x" * 1_000_001})
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder").symlink_to("sub")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"1")
    files = FolderFiles(tmp_path)
    assert list(files) == ["a", ".ci/x"]
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to(".git/config")
    with pytest.raises(RequestRefused, match="a cannot be read"):
        files["a"]
    with pytest.raises(FolderTooLarge, match="more than 0 files: choose a smaller folder"):
        FolderFiles(tmp_path, max_files=0)


def test_no_more_is_held_than_was_allowed_but_what_was_changed_is(tmp_path):
    write(tmp_path, {name: name.encode() * 10 for name in "abcd"})
    files = FolderFiles(tmp_path, max_held=25)
    view = Layered(files).put("a", b"new")
    for name in "bcbd":
        assert files[name]
    write(tmp_path, dict.fromkeys("abcd", b"other"))
    assert {name: files[name] for name in "abcd"} == {"a": b"a" * 10, "b": b"b" * 10, "c": b"other", "d": b"d" * 10}
    assert dict(view) == {"a": b"new", "b": b"b" * 10, "c": b"other", "d": b"d" * 10}
    assert "e" not in view.put("e", b"1").put("e", None)
    assert len(view.put("b", None)) == 3


@in_loop
async def test_a_folder_is_not_read_before_it_is_asked_for(tmp_path, monkeypatch):
    write(tmp_path, {"a.py": b"x = 1\n", "b.py": b"y = 1\n", "c.py": b"z = 1\n"})
    opened: list[str] = []
    opening = os.open

    def open_and_tell(path: Any, *how: Any) -> int:
        opened.append(Path(path).name)
        return opening(path, *how)

    view = folder_workspace(tmp_path)
    monkeypatch.setattr(os, "open", open_and_tell)
    assert await view.files() == ["a.py", "b.py", "c.py"]
    await view.write("b.py", b"y = 2\n")
    await view.delete("c.py")
    await view.write("new/d.py", b"")
    assert await view.files() == ["a.py", "b.py", "new/d.py"]
    assert "+y = 2" in await view.diff()
    assert view.changed() == {"b.py": b"y = 2\n", "c.py": None, "new/d.py": b""}
    assert set(opened) == {"b.py", "c.py"}
    view.rebase(view.changed())
    assert view.changed() == {}
    assert await view.diff() == ""
    assert await view.files() == ["a.py", "b.py", "new/d.py"]
    await view.write("b.py", b"y = 1\n")
    assert list(view.changed()) == ["b.py"]


@in_loop
async def test_a_conflict_is_known_by_what_the_agent_had_read(tmp_path):
    write(tmp_path, {"a.py": b"x = 1\n", "b.py": b"y = 1\n"})
    async with session(tmp_path, ["> read a.py", "read", "> edit a.py 1 x = 3", "> finish"]) as chat:
        await chat.run("read")
        write(tmp_path, {"a.py": b"x = 2\n", "b.py": b"y = 2\n"})
        await chat.run("change")
        assert "-x = 1\n+x = 3" in await chat.diff()
        with pytest.raises(ApplyConflict, match=r"a\.py"):
            await chat.apply()
        write(tmp_path, {"a.py": b"x = 1\n"})
        assert await chat.apply() == ["a.py"]
    assert (tmp_path / "a.py").read_bytes() == b"x = 3\n"


@pytest.mark.slow
@in_loop
async def test_a_large_folder_is_opened_searched_and_changed(tmp_path, sandboxes, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "tree"
    for number in range(25_000):
        write(root, {f"{number % 100}/{number}.c": b"int value_%d = %d;\n" % (number, number)})
    steps = [
        "> grep value_12345",
        "> edit 45/12345.c 1 int value_54321 = 0;",
        "> grep value_12345",
        "> grep /value_5432[01] /",
        "> read 45/12354.c",
        "> bash cat 45/12345.c; echo int value_77777\\; >> 1/1.c; rm 2/2.c",
        "> grep /value_(77777|2) *[;=]/",
        "> finish",
    ]
    async with session(root, steps, sandboxes) as chat:
        outcome = await chat.run("go")
        said = [event.output for event in outcome.tools]
        assert said[0] == "45/12345.c:1 int value_12345 = 12345;"
        assert said[2:4] == ["No line matches.", "45/12345.c:1 int value_54321 = 0;"]
        assert said[4].endswith("Did you mean 54/12354.c?")
        assert said[5:7] == ["int value_54321 = 0;", "1/1.c:2 int value_77777;"]
        assert await chat.apply() == ["1/1.c", "2/2.c", "45/12345.c"]
        assert await chat.diff() == ""
    monkeypatch.setattr("etude.harness.workspaces.large_folder.MOST_FILES", 24_000)
    with pytest.raises(FolderTooLarge, match=r"has 24999 files .*: work without a shell"):
        await session(root, [], sandboxes=object()).run("go")


@in_loop
async def test_states_of_a_folder_are_compared_by_what_was_changed(tmp_path):
    write(tmp_path, {"a.py": b"x = 1\n", "b.py": b"y = 1\n", "c.py": b"z = 1\n"})
    view = folder_workspace(tmp_path)
    before = view.contents()
    await view.write("a.py", b"x = 2\n")
    await view.delete("b.py")
    await view.write("c.py", b"z = 1\n")
    assert differing(before, view.contents()) == ["a.py", "b.py"]
    before = pinned(before, view.changed())
    view.rebase(view.changed())
    assert view.changed() == {}
    assert differing(before, view.contents()) == ["a.py", "b.py"], "what is applied can still be taken back"
    assert before["a.py"] == b"x = 1\n"
    assert differing({"a": b"1", "b": b"2"}, {"b": b"2", "c": b"3"}) == ["a", "c"]
