"""The workspace in memory proves against a real box that it means the same; paths, and the files of a folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.harness.parts import SAMPLE, open_boxes

from etude.harness import ExecMemo, FolderTooLarge, NoShell, OutsideWorkspace, OverlayWorkspace, lazy_workspace
from etude.harness.editing.diff import unified_diff
from etude.harness.workspaces.folder_files import CurrentFiles
from etude.harness.workspaces.workspace import AGENT_ENV, clean_path, delete_file, read_tree
from etude.sandbox import Box, BoxSpec, Sandboxes


@pytest.mark.parametrize(
    ("path", "clean"),
    [("a", "a"), ("./a//b/", "a/b"), ("a/../b", "b"), ("/work/a", "a"), ("/work", "."), (".", "."), ("a/..", ".")],
)
def test_clean_path(path, clean):
    assert clean_path(path) == clean


TOO_LONG = ["a/" + "x" * 256, "\ud800" * 86, "/".join(["x" * 200] * 16)]


@pytest.mark.parametrize(
    "path", ["", "..", "a/../../b", "/", "/etc/passwd", "/work/../etc", "/workshop/a", "a\0b", *TOO_LONG]
)
def test_paths_that_leave_the_workspace(path):
    with pytest.raises(OutsideWorkspace):
        clean_path(path)


def test_an_overlay_without_a_runner_has_no_shell():
    with pytest.raises(NoShell):
        asyncio.run(OverlayWorkspace(SAMPLE).exec("ls", timeout=1))


LEAVING = ["echo 1 > new.txt", "touch /tmp/left", "mkdir d", "chmod +x calc.py", "ln -s a b"]
SHARED = [
    "cat *.py",
    "python check.py",
    "echo 1 >> made.txt",
    "rm -f calc.py",
    "mkdir -p d; ls",
    "touch /tmp/t; ls /tmp",
]
COMMANDS = [*SHARED, "ls", *LEAVING]
"""What the tests say depends on the files alone."""


class Boxes:
    """Counts the boxes that workspaces of one image really made."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self.sandboxes = sandboxes
        self.made = 0

    async def lazy(self, memo: ExecMemo | None = None, deterministic=COMMANDS) -> OverlayWorkspace:
        image = await self.sandboxes.add_image(dict(SAMPLE))

        async def open_box():
            self.made += 1
            return await self.sandboxes.create(BoxSpec(image))

        return lazy_workspace(image, SAMPLE, open_box, memo, deterministic)


PATHS = [*SAMPLE, "pack", "nothing", "calc.py/x", "made.txt"]
actions = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([*SAMPLE]), st.sampled_from([b"", b"x = 1\n", b"no end", b"\n\n"])),
    st.tuples(st.sampled_from(["delete", "read"]), st.sampled_from(PATHS), st.just(b"")),
    st.tuples(st.just("exec"), st.sampled_from([*SHARED, "pwd"]), st.just(b"")),
)


async def done(workspace: OverlayWorkspace, verb: str, what: str, data: bytes) -> object:
    try:
        match verb:
            case "write":
                return await workspace.write(what, data)
            case "read":
                return await workspace.read(what)
            case "delete":
                return await workspace.delete(what)
        result = await workspace.exec(what, timeout=20)
        return result.code, result.stdout, result.stderr, await workspace.files()
    except (FileNotFoundError, IsADirectoryError) as error:
        return type(error)


async def done_in(box: Box, verb: str, what: str, data: bytes) -> object:
    """The same in a box alone."""
    try:
        match verb:
            case "write":
                return await box.write_file(what, data)
            case "read":
                return await box.read_file(what, max_bytes=1_000_000)
            case "delete":
                return await delete_file(box, what)
        result = await box.exec(what, timeout=20, env=AGENT_ENV)
        return result.code, result.stdout, result.stderr, [*await read_tree(box, {})]
    except NotADirectoryError:
        return FileNotFoundError
    except (FileNotFoundError, IsADirectoryError) as error:
        return type(error)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(plays=st.lists(st.lists(actions, max_size=6), min_size=2, max_size=4))
def test_lazy_workspaces_with_a_shared_memo_do_what_a_box_does(tmp_path_factory, plays):
    @in_loop
    async def play(sandboxes: Sandboxes) -> None:
        boxes, memo = Boxes(sandboxes), ExecMemo()
        image = await sandboxes.add_image(dict(SAMPLE))
        for actions in plays:
            lazy, box = await boxes.lazy(memo), await sandboxes.create(BoxSpec(image))
            for action in actions:
                assert await done(lazy, *action) == await done_in(box, *action)
            assert await lazy.diff() == unified_diff(SAMPLE, await read_tree(box, SAMPLE))
            await lazy.close()
            await box.destroy()

    play(sandboxes=open_boxes(tmp_path_factory.mktemp("boxes")))


@in_loop
async def test_equal_commands_over_equal_files_run_once_in_a_group(sandboxes):
    boxes = Boxes(sandboxes)
    memo = ExecMemo()
    group = [await boxes.lazy(memo) for _ in range(6)]
    results = await asyncio.gather(*[w.exec("python check.py", timeout=10) for w in group])
    assert {(r.code, r.stdout) for r in results} == {(1, b"FAIL larger\n")}
    assert (boxes.made, memo.stats.hits, memo.stats.misses) == (1, 5, 1)
    for workspace in group:
        await workspace.write("calc.py", b"larger = max\n")
    assert {(await w.exec("python check.py", timeout=10)).stdout for w in group} == {b"ok\n"}
    assert (memo.stats.misses, memo.stats.refused) == (2, 0)
    for workspace in group:
        await workspace.close()


@in_loop
async def test_a_command_that_nobody_vouches_for_is_run_by_each_rollout(sandboxes):
    """Six rollouts that ask for random bytes get six answers; that they did does not end the sharing of the rest."""
    boxes = Boxes(sandboxes)
    memo = ExecMemo()
    group = [await boxes.lazy(memo, deterministic=["python check.py"]) for _ in range(6)]
    drawn = [(await w.exec("od -An -N8 -x /dev/urandom", timeout=10)).stdout for w in group]
    assert len(set(drawn)) == boxes.made == 6
    checked = [(await w.exec("python check.py", timeout=10)).stdout for w in group]
    assert set(checked) == {b"FAIL larger\n"}
    assert (memo.stats.hits, memo.stats.misses, memo.stats.refused) == (5, 7, 6)
    for workspace in group:
        await workspace.close()


@pytest.mark.parametrize("command", LEAVING)
@in_loop
async def test_a_command_that_leaves_something_behind_is_never_shared(sandboxes, command):
    boxes = Boxes(sandboxes)
    memo = ExecMemo()
    for _ in range(2):
        workspace = await boxes.lazy(memo)
        await workspace.exec(command, timeout=10)
        # What follows may depend on what was left: it is not shared either.
        await workspace.exec("ls", timeout=10)
        await workspace.close()
    assert (boxes.made, memo.stats.hits, memo.stats.refused) == (2, 0, 2)


def test_a_folder_too_large_for_memory_is_refused_and_the_limit_is_said(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * 1000)
    (tmp_path / "large.bin").write_bytes(b"x" * 1_000_001)
    assert len(CurrentFiles(tmp_path, max_files=6, max_bytes=6000).read()) == 6, "large.bin counts for neither"
    with pytest.raises(FolderTooLarge, match="has more than 5 files: choose a smaller folder"):
        CurrentFiles(tmp_path, max_files=5, max_bytes=6000).read()
    with pytest.raises(FolderTooLarge, match=r"has more than 0\.005 MB in files .* kept in memory: choose a smaller"):
        CurrentFiles(tmp_path, max_files=6, max_bytes=5000).read()


def test_a_second_look_reads_what_changed_alone(tmp_path, monkeypatch):
    for name in ("same", "written", "gone"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1, 1))
    now = CurrentFiles(tmp_path, max_files=6, max_bytes=6000)
    # A change of the inode just now is old enough.
    monkeypatch.setattr("etude.harness.search.file_state.SETTLED_NS", -(10**18))
    first = now.read()
    (tmp_path / "written").write_text("anew")
    (tmp_path / "came").write_text("came")
    (tmp_path / "gone").unlink()
    opened = []
    opening = os.open
    monkeypatch.setattr(os, "open", lambda path, *how: opened.append(Path(path).name) or opening(path, *how))
    assert now.read() == {"same": b"same", "written": b"anew", "came": b"came"}
    assert sorted(opened) == ["came", "written"]
    assert first == {name: name.encode() for name in ("same", "written", "gone")}, "what was given stays as it was"


def test_a_file_that_may_change_without_its_times_telling_is_read_again(tmp_path):
    place = tmp_path / "young"
    place.write_text("one")
    found = place.stat()
    now = CurrentFiles(tmp_path, max_files=6, max_bytes=6000)
    assert now.read() == {"young": b"one"}
    place.write_text("two")
    os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert now.read() == {"young": b"two"}


def test_names_that_are_no_text_and_files_that_vanish_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("x\n")
    (tmp_path / "gone.py").write_text("x\n")
    (tmp_path / os.fsdecode(b"\xff.py")).write_text("x\n")
    opening = os.open

    def vanishes(path: Path, *how: int) -> int:
        if path.name == "gone.py":
            path.unlink()
        return opening(path, *how)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", vanishes)
        found = list(CurrentFiles(tmp_path, max_files=6, max_bytes=6000).read())
    assert found == ["a.py"]
