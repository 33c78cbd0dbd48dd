from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop

from etude.harness import ChatSession, ScriptedPolicy, load_profile, write_sample
from etude.recipe.acting import HarnessRecipe, SandboxRecipe
from etude.trace import StopCause

HARNESS = HarnessRecipe.model_validate({"summary_trigger": 0})
PROFILE = load_profile("compact")


def session(folder, steps, sandboxes=None) -> ChatSession:
    policy = ScriptedPolicy(steps, PROFILE)
    return ChatSession(folder, policy, HARNESS, SandboxRecipe.model_validate({}), sandboxes)


@in_loop
async def test_the_sample_repository_fails_its_check_until_the_agent_mends_it(tmp_path, sandboxes):
    folder = write_sample(tmp_path / "sample")
    assert sorted(path.name for path in folder.iterdir()) == ["check.py", "shop.py", "travel.py"]
    steps = ["> shell python check.py", "> edit shop.py 5 if total > 20:", "> shell python check.py", "> finish"]
    async with session(folder, steps, sandboxes) as chat:
        outcome = await chat.run("make check pass")
        assert outcome.stop is StopCause.FINISHED
        assert outcome.tools[0].output == "FAIL add_cost(18, 9) gave 27, expected 32\nexit 1"
        assert outcome.tools[2].output == "ok"
        assert "+    if total > 20:" in await chat.diff()
        assert "total < 20" in (folder / "shop.py").read_text()
        assert await chat.apply() == ["shop.py"]
        assert "total > 20" in (folder / "shop.py").read_text()
        assert await chat.diff() == ""


@in_loop
async def test_a_second_request_goes_on_in_the_same_conversation(tmp_path):
    folder = write_sample(tmp_path)
    async with session(folder, ["hello", "> edit travel.py 2 # a greeting", "done"]) as chat:
        await chat.run("hi")
        outcome = await chat.run("shorten the comment in travel.py")
        assert [m.text for m in outcome.conversation.messages if m.role == "user"] == [
            "hi",
            "shorten the comment in travel.py",
        ]
        assert (outcome.usage.turns, outcome.conversation.task) == (2, "shorten the comment in travel.py")
        (folder / "travel.py").chmod(0o755)
        await chat.apply()
        assert (folder / "travel.py").stat().st_mode & 0o777 == 0o755
        assert sorted(path.name for path in folder.iterdir()) == ["check.py", "shop.py", "travel.py"]


@in_loop
async def test_what_was_written_in_part_is_written_whole_by_the_same_call(tmp_path, monkeypatch):
    folder = write_sample(tmp_path)
    replacing = Path.replace

    def last_fails(self: Path, target: Path) -> Path:
        if target.name == "travel.py":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        return replacing(self, target)

    edits = "> edit shop.py 1 y\n> edit travel.py 1 x"
    async with session(folder, [edits, "done"]) as chat:
        await chat.run("change them")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", last_fails)
            with pytest.raises(OSError, match="Input/output"):
                await chat.apply()
        assert not list(folder.glob(".etude-*"))
        first = (folder / "shop.py").stat().st_ino
        assert (folder / "shop.py").read_text().startswith("y\n")
        assert sorted(await chat.apply()) == ["shop.py", "travel.py"]
        assert (folder / "travel.py").read_text().startswith("x\n")
        assert (folder / "shop.py").stat().st_ino == first, "what is there already is not written again"


def tree(folder: Path) -> dict[str, object]:
    """Every file, folder and link below, and what is in it."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


@in_loop
async def test_apply_writes_what_the_diff_named_and_nothing_else(tmp_path, sandboxes):
    folder = write_sample(tmp_path / "sample")
    (folder / "logo.png").write_bytes(b"\x89PNG\0old")
    (folder / "big.bin").write_bytes(b"x" * 1_000_001)
    (folder / "log.txt").write_text("one line\n")
    commands = [
        "> shell printf '\\211PNG\\0new' > logo.png",
        "> shell rm travel.py; mkdir -p made/deep; echo hi > made/deep/note.txt",
        "> shell head -c 1500000 /dev/zero > log.txt; cp log.txt other.bin",
        "done",
    ]
    before = tree(folder)
    async with session(folder, commands, sandboxes) as chat:
        await chat.run("go")
        diff = await chat.diff()
        assert "--- a/travel.py\n+++ /dev/null\n" in diff
        assert "--- /dev/null\n+++ b/made/deep/note.txt\n@@ -0,0 +1 @@\n+hi\n" in diff
        assert "Binary files a/logo.png and b/logo.png differ\n" in diff
        assert await chat.left_out() == ["log.txt", "other.bin"]
        assert "log.txt" not in diff
        assert "other.bin" not in diff
        assert tree(folder) == before
        assert await chat.apply() == ["logo.png", "made/deep/note.txt", "travel.py"]
        assert await chat.diff() == ""
    del before["travel.py"]
    made = {"made": False, "made/deep": False, "made/deep/note.txt": b"hi\n", "logo.png": b"\x89PNG\0new"}
    assert tree(folder) == before | made
