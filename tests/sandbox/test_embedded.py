"""What only the embedded backend promises: nothing outlives its owner, and it heals when its zygote dies."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import BoxSpec, EmbeddedSandboxes, Feature, SandboxError, SandboxLost, limits_of, open_sandboxes
from etude.sandbox.probe import probe_host
from etude.sandbox.store import remove_dead_owners

OWNER = Path(__file__).with_name("owner.py")


def mounts_of(root: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(root) in line]


def busy_owner(root: Path, cells: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    owner = subprocess.Popen([sys.executable, str(OWNER), str(root), cells], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "busy\n"
    tree = psutil.Process(owner.pid).children(recursive=True)
    assert len(tree) >= 1 + 4 * 3
    return owner, tree


@pytest.mark.parametrize("cells", ["memory", "folders"])
@pytest.mark.parametrize("victim", ["owner", "zygote"])
def test_nothing_outlives_a_killed_owner(tmp_path: Path, cells: str, victim: str) -> None:
    if cells == "memory" and not probe_host().memory_cells:
        pytest.skip("this kernel's tmpfs keeps no user attributes")
    owner, tree = busy_owner(tmp_path, cells)
    with owner:
        (owner if victim == "owner" else psutil.Process(owner.pid).children()[0]).kill()
        owner.wait(10)
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert alive == []
    assert mounts_of(tmp_path) == []
    sandboxes = EmbeddedSandboxes(tmp_path)
    mine = sandboxes._store.owner
    assert [path.name for path in (tmp_path / "owners").iterdir()] == [mine]
    asyncio.run(sandboxes.close())
    assert list((tmp_path / "owners").iterdir()) == []


def test_janitor_spares_the_living(tmp_path: Path) -> None:
    sandboxes = EmbeddedSandboxes(tmp_path)
    other = EmbeddedSandboxes(tmp_path)
    assert remove_dead_owners(tmp_path / "owners") == []

    async def use(backend: EmbeddedSandboxes) -> None:
        assert (await (await backend.create(BoxSpec("host"))).exec("true", timeout=5)).code == 0
        await backend.close()

    asyncio.run(use(other))
    asyncio.run(use(sandboxes))


def test_a_new_zygote_after_one_died(tmp_path: Path) -> None:
    async def body() -> None:
        sandboxes = EmbeddedSandboxes(tmp_path)
        box = await sandboxes.create(BoxSpec("host"))
        running = asyncio.create_task(box.exec("sleep 60", timeout=60))
        await asyncio.sleep(0.1)
        sandboxes._zygote.process.kill()
        with pytest.raises(SandboxLost):
            await running
        await box.destroy()
        again = await sandboxes.create(BoxSpec("host"))
        assert (await again.exec("exit 4", timeout=5)).code == 4
        await sandboxes.close()

    asyncio.run(body())


def test_backend_outlives_an_event_loop(tmp_path: Path) -> None:
    sandboxes = open_sandboxes(SandboxRecipe(), tmp_path)

    async def once() -> str:
        box = await sandboxes.create(BoxSpec(await sandboxes.add_image({"a": b"1"}), limits=limits_of(SandboxRecipe())))
        out = (await box.exec("cat a", timeout=5)).stdout.decode()
        await box.destroy()
        return out

    assert [asyncio.run(once()) for _ in range(2)] == ["1", "1"]
    asyncio.run(sandboxes.close())


def test_images_are_found_again_after_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
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
        shutil.rmtree(tmp_path / "layers")
        with pytest.raises(SandboxError, match="lacks its layers"):
            await second.create(BoxSpec(image))
        await second.close()

    asyncio.run(body())


def test_fork_layers_go_with_the_last_child(tmp_path: Path) -> None:
    async def body() -> None:
        sandboxes = EmbeddedSandboxes(tmp_path, memory_cells=False)
        seals = sandboxes._store.scratch / "seals"
        box = await sandboxes.create(BoxSpec("host"))
        children = await box.fork(2)
        assert len(list(seals.iterdir())) == 1
        (grandchild,) = await children[0].fork()
        for child in (*children, box):
            await child.destroy()
        assert len(list(seals.iterdir())) == 2
        await grandchild.destroy()
        for _ in range(100):
            if not list(seals.iterdir()):
                break
            await asyncio.sleep(0.01)
        assert list(seals.iterdir()) == []
        assert list((sandboxes._store.scratch / "cells").iterdir()) == []
        await sandboxes.close()

    asyncio.run(body())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has ids to give away")
def test_box_ids_are_nobody_on_the_host(tmp_path: Path) -> None:
    async def body() -> None:
        sandboxes = EmbeddedSandboxes(tmp_path)
        assert Feature.SECOND_USER in sandboxes.features
        box = await sandboxes.create(BoxSpec("host"))
        running = asyncio.create_task(box.exec("sleep 60", timeout=60))
        await asyncio.sleep(0.2)
        tree = sandboxes._zygote.process
        for process in psutil.Process(tree.pid).children(recursive=True):
            assert min(process.uids()) >= 2_000_000_000 or min(process.uids()) >= 64_900
        await sandboxes.close()
        with pytest.raises(SandboxLost):
            await running

    asyncio.run(body())


def test_zygote_loads_nothing_heavy(tmp_path: Path) -> None:
    began = time.monotonic()
    sandboxes = EmbeddedSandboxes(tmp_path)
    assert time.monotonic() - began < 5
    maps = Path(f"/proc/{sandboxes._zygote.process.pid}/maps").read_text()
    assert "pydantic" not in maps
    asyncio.run(sandboxes.close())
