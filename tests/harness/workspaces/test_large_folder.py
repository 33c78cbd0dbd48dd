"""Commands over a folder that is not held in memory: the view is what the box has, and knows what it started from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from tests.contract.sandbox.support import in_loop
from tests.harness.search.trees import write
from tests.harness.workspaces.test_folder_files import session

from etude.harness import ApplyConflict, OverlayWorkspace
from etude.harness.workspaces.folder_files import FolderFiles
from etude.harness.workspaces.large_folder import FolderRunner
from etude.harness.workspaces.workspace import read_tree
from etude.sandbox.contract import Box, BoxSpec

FILES = {f"{folder}/{name}.txt": f"{folder} {name}\n".encode() * 20 for folder in "abc" for name in "12345"}


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    monkeypatch.setattr("etude.harness.workspaces.large_folder.LAYER_BYTES", 500)
    monkeypatch.setattr("etude.harness.session.MAX_READ_FILES", 10)


@in_loop
async def test_the_view_is_what_the_box_has_after_whatever_was_done(tmp_path, sandboxes):
    root = tmp_path / "tree"
    write(root, FILES)
    boxes: list[Box] = []

    async def open_box(image: str) -> Box:
        boxes.append(await sandboxes.create(BoxSpec(image, workdir="/work")))
        return boxes[0]

    files = FolderFiles(root)
    view = OverlayWorkspace(files, FolderRunner(files, sandboxes, open_box))
    await view.write("a/1.txt", b"edited before there was a box\n")
    await view.delete("a/2.txt")
    write(root, {"a/3.txt": b"of the user, before\n", "c/4.txt": b"grown" * 300_000})
    for command in (
        "true",
        "echo more >> a/1.txt; echo x > new; rm b/1.txt; mv b/2.txt c/moved.txt",
        "mv c d; ln -s a link; chmod 600 a/4.txt; mkdir -p .git; echo x > .git/config",
        "touch -d 2001-01-01 new; printf y > new; touch -d 2001-01-01 new; rm -r a",
        "echo again > b/1.txt; head -c 2000000 /dev/zero > large; printf '\\377' > latin",
        "rm latin; ( sleep 0.2; echo late > late ) & wait",
        "chmod 000 b",
        "true",
    ):
        assert (await view.exec(command, timeout=20)).stderr == b""
        there = await read_tree(boxes[0], {})
        seen = {path: view._files[path] for path in await view.files()}
        assert "c/4.txt" in seen, "the box was not given it, which is no deletion"
        for grown in ("b/5.txt", "c/4.txt"):
            seen.pop(grown, None)
            there.pop(grown, None)
        assert seen == there, command
        write(
            root,
            {
                "b/5.txt": b"grown" * 300_000,
                "b/3.txt": b"of the user, after " + command.encode(),
                "later": b"not seen",
            },
        )
        await view.write("e/5.txt", b"of the agent, after " + command.encode())
    assert len(boxes) == 1
    changed = {"a/1.txt", "b/1.txt", "b/2.txt", "c/1.txt", "d/1.txt", "d/moved.txt", "late", "new"}
    assert view.changed().keys() >= changed
    await view.close()


@in_loop
async def test_what_the_user_changed_while_a_command_ran_is_not_written_over(tmp_path, sandboxes, monkeypatch):
    root = tmp_path / "tree"
    write(root, FILES)
    look: Callable[..., object] = FolderRunner._read_back

    async def look_late(runner: FolderRunner, box: Box, files: Mapping[str, bytes]) -> object:
        write(root, {"b/1.txt": b"of the user\n"})
        return await look(runner, box, files)  # type: ignore[misc]

    monkeypatch.setattr(FolderRunner, "_read_back", look_late)
    async with session(root, ["> bash echo x > b/1.txt; echo x > b/2.txt", "done"], sandboxes) as chat:
        await chat.run("go")
        with pytest.raises(ApplyConflict, match=r"b/1\.txt"):
            await chat.apply()
    assert (root / "b" / "1.txt").read_bytes() == b"of the user\n"


@in_loop
async def test_files_written_only_just_before_are_given_to_the_box_once(tmp_path, sandboxes, monkeypatch):
    """Their times tell no change; giving all of them again would fill the box's disk."""
    monkeypatch.setattr("etude.harness.search.file_state.SETTLED_NS", 10**18)
    root = tmp_path / "tree"
    write(root, FILES)
    given: list[str] = []

    async def open_box(image: str) -> Box:
        box = await sandboxes.create(BoxSpec(image, workdir="/work"))
        write_file = box.write_file

        async def noted(path: str, data: bytes) -> None:
            given.append(path)
            await write_file(path, data)

        monkeypatch.setattr(box, "write_file", noted)
        return box

    files = FolderFiles(root)
    view = OverlayWorkspace(files, FolderRunner(files, sandboxes, open_box))
    for _ in range(2):
        assert (await view.exec("cat */1.txt", timeout=20)).stdout.startswith(b"a 1\n")
    assert given == []
    write(root, {"a/1.txt": b"A 1\n" * 20})
    await view.exec("true", timeout=20)
    assert given == ["a/1.txt"], "of what the user changed meanwhile it is given what the agent started from"
    await view.close()
