"""The same in a box: what is installed there is used, what linters leave stays out, and no agent's doing breaks it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.harness.lints.parts import LINTER, SCRIPT, lints, shouting
from tests.harness.parts import open_boxes

from etude.harness import lazy_workspace
from etude.harness.workspaces.scratch_tree import SCRATCH
from etude.harness.workspaces.workspace import BoxWorkspace, OverlayWorkspace, Workspace
from etude.sandbox import BoxSpec
from etude.sandbox.contract import Sandboxes

FILES = {"lint.sh": SCRIPT, "a.txt": b"good\nbad one\n", "in/b.txt": b"fine\n"}
NEW = "New problems: 1\n{} [shout bad]"
OLD = "\nOlder problems, which were there when you began: 1 in 1 files"


def in_boxes(images: Path, play: Callable[[Sandboxes, str], Awaitable[None]]) -> None:
    async def main() -> None:
        sandboxes = open_boxes(images)
        try:
            await play(sandboxes, await sandboxes.add_image(dict(FILES)))
        finally:
            await sandboxes.close()

    asyncio.run(main())


def overlay(sandboxes: Sandboxes, image: str) -> OverlayWorkspace:
    return lazy_workspace(image, FILES, lambda: sandboxes.create(BoxSpec(image)))


def test_both_kinds_of_workspace_tell_the_same(images: Path) -> None:
    async def tell(workspace: Workspace) -> list[str]:
        toolbox, told = shouting(workspace), []
        await workspace.write("a.txt", b"good\nbad two\nbad one\n")
        told.append(await lints(toolbox))
        # By a command: a file goes, a folder takes its place, and what lies deeper is new.
        await workspace.exec("rm a.txt in/b.txt; mkdir a.txt; echo bad deep > a.txt/c.txt", timeout=20)
        told.append(await lints(toolbox))
        # What an agent does to the tree harms nobody.
        await workspace.exec(f"rm -rf {SCRATCH}", timeout=20)
        await workspace.write("new.txt", b"")
        told += [await lints(toolbox), " ".join(await workspace.files())]
        await workspace.exec(f"rm -rf {SCRATCH}; echo > {SCRATCH}", timeout=20)
        await workspace.write("new.txt", b"1")
        told.append(await lints(toolbox))
        await workspace.close()
        return told

    async def play(sandboxes: Sandboxes, image: str) -> None:
        told = await tell(overlay(sandboxes, image))
        deep = NEW.format("a.txt/c.txt:1:1 error bad deep")
        assert told[:4] == [
            NEW.format("a.txt:2:1 error bad two") + OLD, deep, deep, "a.txt/c.txt lint.sh new.txt"
        ]  # fmt: skip
        assert "cannot copy the workspace's files" in told[4]
        assert told == await tell(BoxWorkspace(await sandboxes.create(BoxSpec(image)), FILES))

    in_boxes(images, play)


def test_what_is_installed_in_the_workspace_is_called(images: Path) -> None:
    async def play(sandboxes: Sandboxes, image: str) -> None:
        workspace = overlay(sandboxes, image)
        toolbox = shouting(workspace, LINTER.replace('"sh"', '"shout"').replace("./lint.sh", ""))
        assert await lints(toolbox) == "shout gave no answer: lint.sh configures it, but it is not installed."
        await workspace.exec(
            "mkdir -p node_modules/.bin node_modules/shout; cp lint.sh node_modules/shout/main; "
            "sed -i '1i #!/bin/sh' node_modules/shout/main; chmod +x node_modules/shout/main; "
            "ln -s ../shout/main node_modules/.bin/shout; echo bad > node_modules/shout/bad.txt",
            timeout=20,
        )
        await workspace.write("a.txt", b"bad two\nbad one\n")
        assert await lints(toolbox) == NEW.format("a.txt:1:1 error bad two") + OLD
        await workspace.close()

    in_boxes(images, play)
