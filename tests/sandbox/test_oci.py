"""What is the OCI backend's own: ends, images, the janitor, and what it refuses. Over real engines."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.contract.sandbox.support import in_loop, ok
from tests.sandbox.oci_engine import OwnEngine, own_engine
from tests.sandbox.small_root import needs_busybox, write_root

from etude.recipe.acting import SandboxRecipe
from etude.sandbox import (
    BoxSpec,
    Egress,
    Feature,
    ImageError,
    Limits,
    OciSandboxes,
    RequestRefused,
    SandboxLost,
    SandboxUnavailable,
    open_sandboxes,
)
from etude.sandbox.oci.api import Engine
from etude.sandbox.oci.endpoint import find_engine
from etude.sandbox.oci.owner import OWNER, Owner, remove_leftovers


async def nothing_of(engine: Engine, owner: Owner) -> bool:
    kinds = [await engine.list_labelled(kind, OWNER) for kind in ("containers", "volumes")]
    return not any((found.get("Labels") or {}).get(OWNER) == str(owner) for kind in kinds for found in kind)


def test_no_engine_is_one_clear_line(tmp_path: Path) -> None:
    for endpoint in (f"unix://{tmp_path}/none.sock", "tcp://127.0.0.1:1", "somewhere", "tcp://host"):
        with pytest.raises(SandboxUnavailable) as refusal:
            open_sandboxes(SandboxRecipe(backend="oci", endpoint=endpoint), tmp_path)
        assert "\n" not in str(refusal.value)


@pytest.fixture
def sandboxes(engine: OwnEngine, tmp_path: Path) -> OciSandboxes:
    return OciSandboxes(tmp_path / "boxes", endpoint=engine.endpoint)


class TestWhichEngine:
    def test_the_named_one_comes_before_the_environments(self, engine: OwnEngine, tmp_path: Path) -> None:
        elsewhere = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
        assert find_engine(engine.endpoint, elsewhere).endpoint == engine.endpoint
        assert find_engine("", {"CONTAINER_HOST": engine.endpoint}).endpoint == engine.endpoint
        # What is named does not answer: another one is not taken in its stead.
        with pytest.raises(SandboxUnavailable, match=r"none\.sock"):
            find_engine("", {**elsewhere, "CONTAINER_HOST": engine.endpoint})

    def test_the_users_own_is_found_where_its_clients_look(self, engine: OwnEngine) -> None:
        # A folder with a short path: that of a socket has at most 107 characters.
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            for place in ("podman/podman.sock", "docker.sock"):
                socket = Path(folder, place)
                socket.parent.mkdir(exist_ok=True)
                socket.symlink_to(engine.endpoint.removeprefix("unix://"))
                assert find_engine("", {"XDG_RUNTIME_DIR": folder}).endpoint == f"unix://{socket}"
                socket.unlink()

    def test_none_anywhere_is_one_line_that_names_the_places(self, tmp_path: Path) -> None:
        if any(Path(path).exists() for path in ("/run/docker.sock", "/run/podman/podman.sock")):
            pytest.skip("this machine has an engine of its own")
        with pytest.raises(SandboxUnavailable, match=r"podman\.sock.*/run/docker\.sock.*sandbox\.endpoint") as refusal:
            find_engine("", {"XDG_RUNTIME_DIR": str(tmp_path)})
        assert "\n" not in str(refusal.value)


def test_a_mode_beside_an_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"sandbox\.mode.*sandbox\.backend"):
        open_sandboxes(SandboxRecipe(backend="oci", mode="plain"), tmp_path)


@in_loop
async def test_a_box_is_made_forked_and_gone(engine: OwnEngine, tmp_path: Path) -> None:
    """The way once through, fast: the whole contract is in test_oci_contract.py."""
    recipe = SandboxRecipe(backend="oci", endpoint=engine.endpoint, runtime="runc")
    sandboxes = open_sandboxes(recipe, tmp_path)
    assert isinstance(sandboxes, OciSandboxes)
    try:
        box = await sandboxes.create(BoxSpec(await sandboxes.add_image({"a": b"1"}), limits=Limits()))
        assert (
            ok(await box.exec("cat a; id -un; pwd; cat /proc/sys/kernel/hostname", timeout=10))
            == "1agent\n/work\nbox\n"
        )
        cut = await box.exec("setsid sleep 60 & sleep 60", timeout=0.3)
        assert (cut.limit, cut.code) == ("time", 137)
        assert "sleep" not in ok(await box.exec("cat /proc/[0-9]*/comm", timeout=10))
        await box.write_file("b", b"2")
        (child,) = await box.fork()
        assert await child.read_file("b") == b"2"
        for root in ("root", "0", "0:1000"):
            if Feature.ROOT_USER in sandboxes.features:
                assert ok(await box.exec("id -u", timeout=10, user=root)) == "0\n"
            else:
                with pytest.raises(RequestRefused, match="root"):
                    await box.exec("true", timeout=5, user=root)
        assert (Feature.ROOT_USER in sandboxes.features) == (os.geteuid() != 0)
        with pytest.raises(RequestRefused, match="network"):
            await sandboxes.create(BoxSpec("host", egress=Egress("some", ("files.example.org",))))
    finally:
        await sandboxes.close()
    assert await nothing_of(sandboxes.engine, sandboxes.owner)
    with pytest.raises(SandboxLost):
        await box.exec("true", timeout=5)


@in_loop
async def test_the_runtime_is_the_one_that_was_asked_for(engine: OwnEngine, tmp_path: Path) -> None:
    """Or it is refused: podman has one for all containers, and would take that without a word."""
    with pytest.raises(SandboxUnavailable, match=r"sandbox\.runtime = 'absent'.*runc"):
        OciSandboxes(tmp_path, endpoint=engine.endpoint, runtime="absent")
    if engine.kind == "podman":
        with pytest.raises(SandboxUnavailable, match="podman --runtime noting"):
            OciSandboxes(tmp_path, endpoint=engine.endpoint, runtime="noting")
        return
    sandboxes = OciSandboxes(tmp_path, endpoint=engine.endpoint, runtime="noting")
    box = await sandboxes.create(BoxSpec("host"))
    (child,) = await box.fork()
    assert ok(await child.exec("echo ran", timeout=10)) == "ran\n"
    await sandboxes.close()
    noted = engine.noted.read_text()
    assert all(name in noted for name in (box.container, child.container))


@in_loop
async def test_an_image_is_found_again_by_the_next_backend(engine: OwnEngine, tmp_path: Path) -> None:
    first = OciSandboxes(tmp_path, endpoint=engine.endpoint)
    image = await first.add_image({"a": b"1"}, workdir="/home/agent/w")
    box = await first.create(BoxSpec(image))
    await box.write_file("b", b"2")
    saved = await box.snapshot()
    await first.close()
    second = OciSandboxes(tmp_path, endpoint=engine.endpoint)
    again = await second.create(BoxSpec(saved))
    assert ok(await again.exec("pwd; ls", timeout=10)) == "/home/agent/w\na\nb\n"
    assert await second.add_image({"a": b"1"}, workdir="/home/agent/w") == image
    await second.close()
    other = OciSandboxes(tmp_path / "other", endpoint=engine.endpoint)
    with pytest.raises(RequestRefused, match="no image"):
        await other.create(BoxSpec(saved))
    await other.close()


@pytest.mark.slow
@needs_busybox
class TestImages:
    @in_loop
    async def test_an_image_needs_neither_python_nor_a_c_library(self, sandboxes: OciSandboxes, tmp_path: Path) -> None:
        image = await sandboxes.import_image(write_root(tmp_path / "root.tar"))
        box = await sandboxes.create(BoxSpec(image, workdir="/srv/x"))
        assert ok(await box.exec("id -u; pwd", timeout=10)) == "0\n/srv/x\n"
        assert (await box.exec("touch /etc/x && sleep 60", timeout=0.3)).limit == "time"

    @in_loop
    async def test_users_are_those_of_the_image_and_agent_and_grader(
        self, sandboxes: OciSandboxes, tmp_path: Path
    ) -> None:
        """Root is where the image's own user is root, also on an engine whose containers share the host's root."""
        box = await sandboxes.create(BoxSpec(await sandboxes.import_image(write_root(tmp_path / "root.tar"))))
        for user, number in (("", 0), ("root", 0), ("agent", 1000), ("grader", 1001), ("app", 500), ("500:1000", 500)):
            assert ok(await box.exec("id -u", timeout=10, user=user)) == f"{number}\n"
        for attempt in ("ls /proc/1/fd/0", "ls /proc/1/task/1", "echo 9 >/proc/1/oom_score_adj"):
            assert (await box.exec(attempt, timeout=10)).code != 0, attempt
        with pytest.raises(RequestRefused, match="no user 'who'"):
            await box.exec("true", timeout=10, user="who")

    @in_loop
    async def test_tars_archives_and_damage(self, sandboxes: OciSandboxes, engine: OwnEngine, tmp_path: Path) -> None:
        tar = tmp_path / "root.tar.gz"
        tar.write_bytes(gzip.compress(write_root(tmp_path / "root.tar").read_bytes()))
        image = await sandboxes.import_image(tar)
        reference = (await sandboxes.images.find_image(image)).reference
        for form in engine.archive_forms:
            archive = tmp_path / f"{form}.tar"
            engine.save(reference, form, archive)
            loaded = await sandboxes.import_image(archive)
            box = await sandboxes.create(BoxSpec(loaded))
            assert ok(await box.exec("id -u", timeout=10)) == "0\n"
        (tmp_path / "damaged.tar").write_bytes(tar.read_bytes()[:5000])
        for source in (tmp_path / "damaged.tar", tmp_path / "absent.tar"):
            with pytest.raises(ImageError, match=source.name):
                await sandboxes.import_image(source)
        with pytest.raises(ImageError, match="nowhere"):
            await sandboxes.pull_image("127.0.0.1:1/nowhere:x")

    @in_loop
    async def test_a_dockerfile_is_built_by_the_engine(self, sandboxes: OciSandboxes, tmp_path: Path) -> None:
        image = await sandboxes.import_image(write_root(tmp_path / "root.tar"))
        base = (await sandboxes.images.find_image(image)).reference
        context = tmp_path / "context"
        (context / "data").mkdir(parents=True)
        for name in ("hello", "secret", "data/a", "data/b.log"):
            (context / name).write_text(f"{name}\n")
        (context / ".dockerignore").write_text("Dockerfile\nsecret\n**/*.log\n")
        (context / "Dockerfile").write_text(f"FROM {base}\nARG A=1\nENV B=$A\nCOPY . /c\nWORKDIR /srv\nUSER app\n")
        said: list[str] = []
        image = await sandboxes.build_image(context, arguments={"A": "5"}, say=said.append)
        box = await sandboxes.create(BoxSpec(image))
        assert ok(await box.exec("cat /c/hello; id -u; pwd; echo $B", timeout=10)) == "hello\n500\n/srv\n5\n"
        assert ok(await box.exec("cd /c && ls -A . data", timeout=10)) == ".:\ndata\nhello\n\ndata:\na\n"
        assert said
        (context / "other").write_text("FROM nosuchimage:latest\n")
        with pytest.raises(ImageError):
            await sandboxes.build_image(context, dockerfile=context / "other")
        with pytest.raises(ImageError, match="absent"):
            await sandboxes.build_image(context, dockerfile=context / "absent")
        with pytest.raises(RequestRefused):
            await sandboxes.build_image(context, egress=Egress("some", ("files.example.org",)))

    @in_loop
    async def test_a_tar_or_an_image_of_the_engine_as_the_base(self, engine: OwnEngine, tmp_path: Path) -> None:
        root = write_root(tmp_path / "root.tar")
        first = OciSandboxes(tmp_path / "s", endpoint=engine.endpoint, base=str(root))
        image = await first.add_image({"a": b"1"})
        box = await first.create(BoxSpec(image))
        assert ok(await box.exec("cat a; stat -c %u a", timeout=10)) == "10\n"
        reference = (await first.images.find_image("host")).reference
        await first.close()
        second = OciSandboxes(tmp_path / "s2", endpoint=engine.endpoint, base=reference)
        assert ok(await (await second.create(BoxSpec("host"))).exec("id -u", timeout=10)) == "0\n"
        await second.close()
        third = OciSandboxes(tmp_path / "s3", endpoint=engine.endpoint, base="localhost/nothing:here")
        with pytest.raises(RequestRefused, match="nothing:here"):
            await third.create(BoxSpec("host"))
        await third.close()


OWNER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from etude.sandbox import BoxSpec, OciSandboxes
async def main():
    sandboxes = OciSandboxes(Path(sys.argv[2]), endpoint=sys.argv[1])
    box = await sandboxes.create(BoxSpec("host"))
    await box.fork()
    print(sandboxes.owner, flush=True)
    await box.exec("sleep 600", timeout=600)
asyncio.run(main())
"""


@pytest.mark.slow
class TestEnds:
    @in_loop
    async def test_boxes_end_with_their_killed_owner_and_the_janitor_takes_the_rest(
        self, engine: OwnEngine, tmp_path: Path
    ) -> None:
        command = [sys.executable, "-c", OWNER_PROGRAM, engine.endpoint, str(tmp_path)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout
        owner = Owner.parse((await process.stdout.readline()).decode().strip())
        client = Engine(engine.endpoint)
        assert not owner.dead()
        assert await remove_leftovers(client) == []
        assert len(await client.list_labelled("containers", OWNER)) >= 2
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert owner.dead()
        async with asyncio.timeout(60):  # Each look takes the engine some milliseconds.
            while any(str(owner) in str(box) for box in await client.list_labelled("containers", OWNER)):
                pass
        removed = await remove_leftovers(client)
        assert any(name.startswith("localhost/etude/fork:") for name in removed)
        assert f"etude-{owner.name}" in removed
        assert await nothing_of(client, owner)
        assert await remove_leftovers(client) == []

    @in_loop
    async def test_images_of_a_store_that_is_gone_are_removed(self, engine: OwnEngine, tmp_path: Path) -> None:
        root = tmp_path / "store"
        sandboxes = OciSandboxes(root, endpoint=engine.endpoint)
        reference = (await sandboxes.images.find_image(await sandboxes.add_image({"a": b"1"}))).reference
        await sandboxes.close()
        assert reference not in await remove_leftovers(sandboxes.engine)
        shutil.rmtree(root)
        assert reference in await remove_leftovers(sandboxes.engine)
        assert await sandboxes.engine.image(reference) is None

    @in_loop
    async def test_a_killed_first_process_is_a_lost_box(self, sandboxes: OciSandboxes) -> None:
        box = await sandboxes.create(BoxSpec("host"))
        running = asyncio.create_task(box.exec("sleep 60", timeout=60))
        facts = await sandboxes.engine.call("GET", f"/containers/{box.container}/json")
        os.kill(facts["State"]["Pid"], signal.SIGKILL)
        with pytest.raises(SandboxLost):
            await running
        for request in (box.exec("true", timeout=5), box.snapshot(), box.fork()):
            with pytest.raises(SandboxLost):
                await request
        await sandboxes.close()
        assert await nothing_of(sandboxes.engine, sandboxes.owner)

    @in_loop
    async def test_a_killed_engine_is_a_lost_box_and_the_next_one_is_used(
        self, engine: OwnEngine, tmp_path: Path
    ) -> None:
        with own_engine(type(engine)) as engine:
            sandboxes = OciSandboxes(tmp_path, endpoint=engine.endpoint)
            box = await sandboxes.create(BoxSpec("host"))
            running = asyncio.create_task(box.exec("sleep 60", timeout=60))
            await box.exec("true", timeout=5)
            engine.kill()
            with pytest.raises(SandboxLost):
                await running
            with pytest.raises(SandboxLost):
                await sandboxes.create(BoxSpec("host"))
            engine.start()
            again = await sandboxes.create(BoxSpec("host"))
            assert ok(await again.exec("echo on", timeout=10)) == "on\n"
            await sandboxes.close()
            assert await nothing_of(sandboxes.engine, sandboxes.owner)

    @in_loop
    async def test_what_no_process_maps_is_limited_too(self, sandboxes: OciSandboxes) -> None:
        """Memory that only a file holds: no process is large, so only the engine's cgroup can see it."""
        assert Feature.MEMORY_LIMIT in sandboxes.features
        box = await sandboxes.create(BoxSpec("host", limits=Limits(memory_mb=64, file_mb=1024)))
        code = "import os\nf = os.memfd_create('m')\nfor _ in range(600): os.write(f, bytes(1 << 20))\nprint('all')"
        hog = await box.exec(["python", "-c", code], timeout=30)
        assert hog.code != 0
        assert b"all" not in hog.stdout


@in_loop
async def test_an_image_with_something_else_where_a_box_needs_a_folder(sandboxes: OciSandboxes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/program").touch()
    for goal in ("nowhere", "work", "bin/program"):
        (root / "work").symlink_to(goal)
        image = await sandboxes.import_image(root)
        with pytest.raises(ImageError, match="a box needs a folder there"):
            await sandboxes.create(BoxSpec(image, workdir="/work/below"))
        (root / "work").unlink()
