"""What only the embedded backend promises: nothing outlives its owner, and it heals when its zygote dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import psutil
import pytest
from tests.contract.sandbox.ends import first_process_above
from tests.contract.sandbox.support import in_loop

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import (
    Box,
    BoxSpec,
    EmbeddedSandboxes,
    Feature,
    ImageError,
    RequestRefused,
    SandboxError,
    SandboxLost,
    open_sandboxes,
)
from etude.sandbox.embedded import copies
from etude.sandbox.embedded.box import EmbeddedBox
from etude.sandbox.embedded.probe import probe_host
from etude.sandbox.images.owners import remove_dead_owners

OWNER = Path(__file__).with_name("owner.py")


def mounts_of(root: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(root) in line]


def start_owner(root: Path, cells: str, what: str) -> subprocess.Popen[str]:
    owner = subprocess.Popen([sys.executable, str(OWNER), str(root), cells, what], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == f"{what}\n"
    return owner


def zygote_of(owner: subprocess.Popen[str]) -> psutil.Process:
    """An owner has other processes, too."""
    for child in psutil.Process(owner.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # Those come and go.
            if child.cmdline()[:1] == ["etude-sandbox"]:
                return child
    raise AssertionError("no zygote")


def assert_nothing_is_left(root: Path, tree: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(tree, timeout=60)
    assert alive == []
    assert mounts_of(root) == []
    sandboxes = EmbeddedSandboxes(root)
    assert [path.name for path in (root / "owners").iterdir()] == [sandboxes.store.owner]
    asyncio.run(sandboxes.close())
    assert list((root / "owners").iterdir()) == []


@pytest.mark.parametrize("cells", ["memory", pytest.param("folders", marks=pytest.mark.soak)])
@pytest.mark.parametrize("victim", ["owner", "zygote"])
def test_nothing_outlives_a_killed_owner(tmp_path: Path, cells: str, victim: str) -> None:
    if cells == "memory" and not probe_host().memory_cells:
        pytest.skip("this kernel's tmpfs keeps no user attributes")
    owner = start_owner(tmp_path, cells, "busy")
    tree = psutil.Process(owner.pid).children(recursive=True)
    assert len(tree) >= 1 + 4 * 3
    with owner:
        (owner if victim == "owner" else zygote_of(owner)).kill()
        owner.wait(60)
    assert_nothing_is_left(tmp_path, tree)


@pytest.mark.slow
@pytest.mark.parametrize("cells", ["memory", "folders"])
@pytest.mark.parametrize("victim", ["owner", "zygote", "init"])
def test_nothing_outlives_a_kill_at_any_moment(tmp_path: Path, cells: str, victim: str) -> None:
    """Boxes are being made, forked, sealed and destroyed when somebody is killed."""
    if cells == "memory" and not probe_host().memory_cells:
        pytest.skip("this kernel's tmpfs keeps no user attributes")
    chance = random.Random(f"{cells} {victim}")
    for _ in range(3):
        owner = start_owner(tmp_path, cells, "storm")
        with owner:
            time.sleep(chance.uniform(0.0, 0.4))
            ours, zygote = psutil.Process(owner.pid), zygote_of(owner)
            tree = ours.children(recursive=True)
            boxes = [process for process in tree if process != zygote]
            chosen = {"owner": ours, "zygote": zygote, "init": chance.choice(boxes or tree)}
            with contextlib.suppress(psutil.NoSuchProcess):
                chosen[victim].kill()
                time.sleep(chance.uniform(0.0, 0.1))
                tree += ours.children(recursive=True)
            owner.kill()
        assert_nothing_is_left(tmp_path, tree)


def test_janitor_spares_the_living(tmp_path: Path) -> None:
    sandboxes = EmbeddedSandboxes(tmp_path)
    other = EmbeddedSandboxes(tmp_path)
    assert remove_dead_owners(tmp_path / "owners") == []

    async def use(backend: EmbeddedSandboxes) -> None:
        assert (await (await backend.create(BoxSpec("host"))).exec("true", timeout=5)).code == 0
        await backend.close()

    asyncio.run(use(other))
    asyncio.run(use(sandboxes))


@in_loop
async def test_a_new_zygote_after_one_died(sandboxes: EmbeddedSandboxes) -> None:
    box = await sandboxes.create(BoxSpec("host"))
    running = asyncio.create_task(box.exec("sleep 60", timeout=60))
    await asyncio.sleep(0.1)
    sandboxes._zygote.process.kill()
    with pytest.raises(SandboxLost):
        await running
    await box.destroy()
    again = await sandboxes.create(BoxSpec("host"))
    assert (await again.exec("exit 4", timeout=5)).code == 4


@in_loop
async def test_images_are_found_again_after_a_restart(tmp_path: Path) -> None:
    first = EmbeddedSandboxes(tmp_path)
    image = await first.add_image({"a/b": b"kept"})
    box = await first.create(BoxSpec(image))
    await box.write_file("c", b"more")
    saved = await box.snapshot()
    await first.close()
    second = EmbeddedSandboxes(tmp_path)
    assert await second.add_image({"a/b": b"kept"}) == image
    box = await second.create(BoxSpec(saved))
    assert (await box.read_file("a/b"), await box.read_file("c")) == (b"kept", b"more")
    (tmp_path / "layers").rename(tmp_path / "lost")
    with pytest.raises(SandboxError, match="lacks its layers"):
        await second.create(BoxSpec(image))
    await second.close()


@in_loop
async def test_cells_go_with_the_last_that_stands_on_them(tmp_path: Path) -> None:
    sandboxes = EmbeddedSandboxes(tmp_path, memory_cells=False)
    cells = sandboxes.store.scratch / "cells"

    async def left(count: int) -> None:
        async with asyncio.timeout(30):
            while len(list(cells.iterdir())) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    box = await sandboxes.create(BoxSpec("host"))
    await left(1)
    children = await box.fork(2)
    await left(3)  # Nothing was written: nothing is sealed.
    await children[0].write_file("a", b"1")
    (grandchild,) = await children[0].fork()
    await left(5)
    for gone in (*children, box):
        await gone.destroy()
    await left(2)
    assert await grandchild.read_file("a") == b"1"
    await grandchild.destroy()
    await left(0)
    await sandboxes.close()


@in_loop
async def test_cells_of_a_box_that_dies_by_itself_go(tmp_path: Path) -> None:
    sandboxes = EmbeddedSandboxes(tmp_path, memory_cells=False)
    box = await sandboxes.create(BoxSpec("host"))
    await box.write_file("a", b"1")
    cast(EmbeddedBox, box)._channel.close()
    async with asyncio.timeout(30):
        while list((sandboxes.store.scratch / "cells").iterdir()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await sandboxes.close()


@pytest.mark.parametrize("deepest", [2, 3])
@in_loop
async def test_melted_cells_show_the_same_files(
    sandboxes: EmbeddedSandboxes, monkeypatch: pytest.MonkeyPatch, deepest: int
) -> None:
    """Whiteouts, opaque folders, links and attributes over an image, through forks that melt the chain each time."""
    monkeypatch.setattr(copies, "MAX_STACKED_LAYERS", deepest)
    # A folder's size is its file system's own business.
    look = (
        "find . -type d -printf '%p %m %u %g\\n' | sort; find . ! -type d -printf '%p %m %u %g %y %s %l %t\\n' | sort;"
        "find . -type f -exec md5sum {} + | sort; stat -c %i h1 h2 2>/dev/null | sort -u | wc -l"
    )
    changes = [
        "rm -r a; mkdir -p a/x; echo 1 >a/x/f; chmod 700 a/x",
        "rm -r a/x; echo file >a/x; ln -s a/x link; echo h >h1; ln h1 h2; mkfifo pipe",
        "rm a/x; mkdir a/x; echo 2 >a/x/g; rm -r b; touch -d 2001-02-03 a/x/g",
        "mkdir b; echo new >b/new; rm link pipe; chmod 600 h1; mv b/new b/newer",
        "rm -r a b; mkdir a; echo back >a/one; echo more >>h2",
        "true",
    ]
    image = await sandboxes.add_image({"a/one": b"1", "a/two": b"2", "b/c/d": b"3", "b/e": b"4"})
    box = await sandboxes.create(BoxSpec(image))
    for change in changes:
        assert (await box.exec(change, timeout=5)).code == 0
        expected = (await box.exec(look, timeout=5)).stdout
        (child,) = await box.fork()
        kept = await sandboxes.create(BoxSpec(await child.snapshot()))
        for copy in (box, child, kept):
            assert (await copy.exec(look, timeout=5)).stdout == expected
        held = cast(EmbeddedBox, child)
        assert len(held.cells) + len(held.lease.layers) <= deepest + 1
        await box.destroy()
        box = child


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has ids to give away")
@in_loop
async def test_box_ids_are_nobody_on_the_host(sandboxes: EmbeddedSandboxes) -> None:
    assert Feature.SECOND_USER in sandboxes.features
    box = await sandboxes.create(BoxSpec("host"))
    words = ["sleep", f"60.{os.getpid()}"]
    running = asyncio.create_task(box.exec(words, timeout=60))
    first = await first_process_above(words)
    for process in (first, *first.children(recursive=True)):
        assert min(process.uids()) >= 64_900
    await sandboxes.close()
    with pytest.raises(SandboxLost):
        await running


@pytest.mark.parametrize(
    ("place", "goal"),
    [
        ("proc", "bin"),
        ("proc", "nowhere"),
        ("proc", "proc"),
        ("proc", "/"),
        ("dev", "nowhere"),
        ("dev", ""),
        ("proc", ""),
        ("work", "nowhere"),
        ("work", "work"),
        ("work", "bin/program"),
    ],
)
@in_loop
async def test_an_image_with_something_else_where_a_box_needs_a_folder(
    sandboxes: EmbeddedSandboxes, tmp_path: Path, place: str, goal: str
) -> None:
    """A link to a folder, to nothing, to itself, to the root or to a file; or (no goal) a file."""
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/program").touch()
    if goal:
        (root / place).symlink_to(goal)
    else:
        (root / place).touch()
    image = await sandboxes.import_image(root)
    with pytest.raises(ImageError, match=f"the image's /{place}"):
        await sandboxes.create(BoxSpec(image, workdir="/work/below"))
    assert (await (await sandboxes.create(BoxSpec("host"))).exec("true", timeout=5)).code == 0


@pytest.mark.slow
@in_loop
async def test_hundreds_of_boxes_live_at_once(sandboxes: EmbeddedSandboxes) -> None:
    boxes: list[Box] = []
    for _ in range(10):
        boxes += await asyncio.gather(*(sandboxes.create(BoxSpec("host")) for _ in range(20)))
    await asyncio.gather(*(box.write_file("n", str(number).encode()) for number, box in enumerate(boxes)))
    answers = await asyncio.gather(*(box.exec("cat n", timeout=60) for box in boxes))
    assert [answer.stdout for answer in answers] == [str(number).encode() for number in range(200)]
    children = await boxes[-1].fork(8)
    assert [await child.read_file("n") for child in children] == [b"199"] * 8


@in_loop
async def test_too_many_variables_are_refused_and_end_no_other_box(tmp_path: Path) -> None:
    sandboxes = open_sandboxes(SandboxRecipe(), tmp_path)
    try:
        box = await sandboxes.create(BoxSpec("host"))
        with pytest.raises(RequestRefused, match="fewer variables"):
            await sandboxes.create(BoxSpec("host", env={"A": "x" * 130_000}))
        assert (await box.exec(["/bin/true"], timeout=10)).code == 0
    finally:
        await sandboxes.close()
