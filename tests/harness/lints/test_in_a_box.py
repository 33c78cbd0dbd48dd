"""The same in a box: what is installed there is used, what linters leave stays out, and no agent's doing breaks it."""

from __future__ import annotations

from tests.contract.sandbox.support import in_loop
from tests.harness.lints.parts import LINTER, SCRIPT, lints, shouting

from etude.harness import OverlayWorkspace, lazy_workspace
from etude.harness.workspaces.scratch_tree import SCRATCH
from etude.sandbox import BoxSpec
from etude.sandbox.contract import Sandboxes

FILES = {"lint.sh": SCRIPT, "a.txt": b"good\nbad one\n", "in/b.txt": b"fine\n"}
NEW = "New problems: 1\n{} [shout bad]"
OLD = "\nOlder problems, which were there when you began: 1 in 1 files"


async def overlay(sandboxes: Sandboxes) -> OverlayWorkspace:
    image = await sandboxes.add_image(dict(FILES))
    return lazy_workspace(image, FILES, lambda: sandboxes.create(BoxSpec(image)))


@in_loop
async def test_whatever_commands_do_to_files_and_to_the_scratch_tree(sandboxes: Sandboxes) -> None:
    workspace = await overlay(sandboxes)
    toolbox = shouting(workspace)
    await workspace.write("a.txt", b"good\nbad two\nbad one\n")
    assert await lints(toolbox) == NEW.format("a.txt:2:1 error bad two") + OLD
    # By a command: a file goes, a folder takes its place, and what lies deeper is new.
    await workspace.exec("rm a.txt in/b.txt; mkdir a.txt; echo bad deep > a.txt/c.txt", timeout=20)
    assert await lints(toolbox) == NEW.format("a.txt/c.txt:1:1 error bad deep")
    # What an agent does to the tree harms nobody.
    await workspace.exec(f"rm -rf {SCRATCH}", timeout=20)
    await workspace.write("new.txt", b"")
    assert await lints(toolbox) == NEW.format("a.txt/c.txt:1:1 error bad deep")
    assert await workspace.files() == ["a.txt/c.txt", "lint.sh", "new.txt"]
    await workspace.exec(f"rm -rf {SCRATCH}; echo > {SCRATCH}", timeout=20)
    await workspace.write("new.txt", b"1")
    assert "cannot copy the workspace's files" in await lints(toolbox)


@in_loop
async def test_what_is_installed_in_the_workspace_is_called(sandboxes: Sandboxes) -> None:
    workspace = await overlay(sandboxes)
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
