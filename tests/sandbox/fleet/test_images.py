"""Images that a fleet imports, pulls and builds: made on one host, and there on any other that gets a box of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.contract.sandbox.support import PATIENCE, in_loop
from tests.sandbox.fleet.test_fleet import ROOMY, a_fleet
from tests.sandbox.image_files import Blobs, busybox_tar, put_image, second_layer
from tests.sandbox.small_root import needs_busybox, write_root
from tests.sandbox.test_registry import needs_registry, push, registry

from etude.sandbox import BoxSpec, ImageError
from etude.sandbox.fleet import FleetSandboxes
from etude.sandbox.fleet.remote_box import RemoteBox

# With a burst of one, boxes that are asked for together go to different hosts.
APART = replace(ROOMY, host_rate=0.5, host_burst=1)


async def said_on_each_host(sandboxes: FleetSandboxes, image: str, command: str) -> dict[str, bytes]:
    boxes = await asyncio.gather(*(sandboxes.create(BoxSpec(image)) for _ in range(2)))
    return {box.host_name: (await box.exec(command, timeout=10)).stdout for box in boxes if isinstance(box, RemoteBox)}


@needs_busybox
@in_loop
async def test_an_imported_root(tmp_path: Path) -> None:
    async with a_fleet(tmp_path / "fleet", APART) as (fleet, _):
        sandboxes = fleet.sandboxes()
        image = await sandboxes.import_image(write_root(tmp_path / "root.tar"))
        said = await said_on_each_host(sandboxes, image, "cat /etc/group | head -n 1")
        assert said == dict.fromkeys(fleet.hosts, b"root:x:0:\n")
        (tmp_path / "damaged.tar").write_bytes(b"no tar")
        with pytest.raises(ImageError, match=r"damaged\.tar"):
            await sandboxes.import_image(tmp_path / "damaged.tar")


@needs_busybox
@needs_registry
@in_loop
async def test_a_pulled_image(tmp_path: Path) -> None:
    blobs = Blobs()
    manifest = put_image(blobs, [busybox_tar(), second_layer()])
    with registry(tmp_path) as host:
        push(host, "team/box", "1", blobs, manifest)
        async with a_fleet(tmp_path / "fleet", APART) as (fleet, _):
            sandboxes = fleet.sandboxes()
            image = await sandboxes.pull_image(f"{host}/team/box:1")
            assert await said_on_each_host(sandboxes, image, "cat who") == dict.fromkeys(fleet.hosts, b"layered")
            with pytest.raises(ImageError, match="team/none"):
                await sandboxes.pull_image(f"{host}/team/none:1")


@needs_busybox
@in_loop
async def test_a_built_image(tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    write_root(context / "root.tar")
    (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nARG WORD\nRUN echo it is $WORD > /said\n")
    async with a_fleet(tmp_path / "fleet", APART) as (fleet, _):
        sandboxes, told = fleet.sandboxes(), list[str]()
        image = await sandboxes.build_image(context, arguments={"WORD": "built"}, say=told.append)
        assert any("RUN echo it is $WORD" in line for line in told), told
        assert await sandboxes.build_image(context, arguments={"WORD": "built"}) == image, "made on the other host"
        said = await said_on_each_host(sandboxes, image, "cat /said")
        assert said == dict.fromkeys(fleet.hosts, b"it is built\n")
        (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nRUN exit 7\n")
        with pytest.raises(ImageError, match=r"Dockerfile:3.*7"):
            await sandboxes.build_image(context)


@needs_busybox
@in_loop
async def test_a_build_that_is_given_up_ends_on_its_host(tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    write_root(context / "root.tar")
    (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nRUN echo began; sleep 86399\n")
    async with a_fleet(tmp_path / "fleet", nodes=1) as (fleet, _):
        began = asyncio.Event()
        build = asyncio.create_task(
            fleet.sandboxes().build_image(context, say=lambda line: began.set() if line.strip() == "began" else None)
        )
        await asyncio.wait_for(began.wait(), PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while not running("86399"):  # noqa: ASYNC110  # It began to speak before it slept.
                await asyncio.sleep(0.05)
        build.cancel()
        with pytest.raises(asyncio.CancelledError):
            await build
        async with asyncio.timeout(PATIENCE):
            while running("86399"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def running(word: str) -> bool:
    return any(word in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
