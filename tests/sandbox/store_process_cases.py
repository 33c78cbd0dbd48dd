"""A store whose trees belong to subordinate ids. Run by test_ordinary_user.py, as a user who has some.

Here what the suites for every mode cannot see: that the store process is used, what it says, and how it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.contract.sandbox.support import in_loop
from tests.sandbox.store_process_work import fail, fail_oddly, record_in_store_process, speak, stay, whoami

from etude.sandbox import BoxSpec, EmbeddedSandboxes, Feature, ImageError, RequestRefused, SandboxLost
from etude.sandbox.embedded import temporary_store
from etude.sandbox.embedded.probe import Mode, probe_host
from etude.sandbox.images.collect import collect
from etude.sandbox.images.image import HOST, Image
from etude.sandbox.images.importing import import_image
from etude.sandbox.images.owners import remove_tree
from etude.sandbox.images.store import MERGE_AT, ImageStore

IDS = probe_host().ids


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    opened = ImageStore(tmp_path / "store", IDS)
    yield opened
    opened.close()


def store_processes() -> list[psutil.Process]:
    """The living: one that has ended has no command line."""
    living = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.cmdline()[:1] == ["etude-store"]:
                living.append(child)
    return living


def stay_in_thread(store: ImageStore, folder: Path) -> tuple[threading.Thread, int, list[SandboxLost]]:
    """One call under way: its thread, its process, and what it will have raised."""
    pipe, raised = folder / "pipe", list[SandboxLost]()
    os.mkfifo(pipe)

    def call() -> None:
        try:
            stay(store, pipe)
        except SandboxLost as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, int(pipe.read_text()), raised


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


class TestStoreProcess:
    def test_this_is_the_mode(self) -> None:
        assert probe_host().mode == Mode.SUBUID
        assert IDS is not None
        assert IDS.count == 65_536

    def test_it_starts_with_the_first_tree_and_is_root_there(self, store: ImageStore, tmp_path: Path) -> None:
        store.record(Image(HOST, ()))
        assert store_processes() == []
        uid, pid, folder, home = whoami(store)
        assert (uid, folder, home) == (0, str(Path.cwd()), os.environ["HOME"])
        assert pid != os.getpid()
        assert len(store_processes()) == 1

    def test_calls_see_the_folder_and_environment_of_now(
        self, store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whoami(store)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", "/elsewhere")
        assert whoami(store)[2:] == (str(tmp_path), "/elsewhere")

    def test_what_is_said_is_heard_in_order(self, store: ImageStore) -> None:
        heard: list[str] = []
        assert speak(store, 100, say=heard.append) == 100
        assert heard == [str(number) for number in range(100)]

    @pytest.mark.parametrize(
        "error",
        [
            ImageError("x"),
            RequestRefused("y"),
            FileNotFoundError(2, "no"),
            ConnectionResetError(104, "z"),
            KeyError("w"),
        ],
    )
    def test_what_it_raises_is_raised_here(self, store: ImageStore, error: Exception) -> None:
        with pytest.raises(type(error), match=str(error.args[-1])):
            fail(store, error)

    def test_of_a_bug_one_sees_where_it_was(self, store: ImageStore) -> None:
        with pytest.raises(ValueError, match="w") as caught:
            fail(store, ValueError("w"))
        assert "raise error" in caught.value.__notes__[0]

    def test_an_error_that_cannot_travel_is_named(self, store: ImageStore) -> None:
        with pytest.raises(Exception, match="Odd: 1 and 2"):
            fail_oddly(store)

    def test_a_killed_store_process_fails_its_calls_and_is_replaced(self, store: ImageStore, tmp_path: Path) -> None:
        thread, pid, raised = stay_in_thread(store, tmp_path)
        (store_process,) = store_processes()
        store_process.kill()
        thread.join(30)
        assert [type(error) for error in raised] == [SandboxLost]
        wait_until_gone(pid)
        assert whoami(store)[0] == 0
        assert [each.pid for each in store_processes()] != [store_process.pid]

    def test_a_killed_call_fails_alone(self, store: ImageStore, tmp_path: Path) -> None:
        thread, pid, raised = stay_in_thread(store, tmp_path)
        before = store_processes()
        os.kill(pid, signal.SIGKILL)
        thread.join(30)
        assert [type(error) for error in raised] == [SandboxLost]
        assert "stay" in str(raised[0])
        assert whoami(store)[0] == 0
        assert store_processes() == before

    def test_closing_ends_what_is_under_way(self, tmp_path: Path) -> None:
        store = ImageStore(tmp_path / "store", IDS)
        thread, pid, raised = stay_in_thread(store, tmp_path)
        store.close()
        thread.join(30)
        assert [type(error) for error in raised] == [SandboxLost]
        wait_until_gone(pid)
        assert store_processes() == []
        assert list((tmp_path / "store" / "owners").iterdir()) == []

    def test_it_ends_with_its_owner(self, tmp_path: Path) -> None:
        script = (
            "import sys\nfrom pathlib import Path\nfrom etude.sandbox.embedded.probe import probe_host\n"
            "from etude.sandbox.images.store import ImageStore\nfrom tests.sandbox.store_process_work import stay\n"
            "stay(ImageStore(Path(sys.argv[1]), probe_host().ids), Path(sys.argv[2]))"
        )
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "store"), str(pipe)]) as owner:
            pid = int(pipe.read_text())
            tree = psutil.Process(owner.pid).children(recursive=True)
            assert len(tree) == 2
            owner.kill()
        wait_until_gone(pid)
        assert psutil.wait_procs(tree, timeout=30)[1] == []
        owners = tmp_path / "store" / "owners"
        (dead,) = owners.iterdir()
        with pytest.raises(PermissionError):
            remove_tree(dead / "half")
        ImageStore(tmp_path / "store", None).close()  # Cannot remove it, and need not.
        assert list(owners.iterdir()) == [dead]
        ImageStore(tmp_path / "store", IDS).close()
        assert list(owners.iterdir()) == []


class TestTrees:
    @in_loop
    async def test_owners_are_the_hosts_own_numbers(self, tmp_path: Path) -> None:
        """The same folder has the same image, whoever imports it; its files belong to the ids that they say."""
        assert IDS is not None
        assert IDS.subordinate is not None
        source = tmp_path / "source"
        source.mkdir()
        (source / "mine").write_text("x")
        (source / "mine").chmod(0o600)
        sandboxes = EmbeddedSandboxes(tmp_path / "store")
        assert {Feature.ROOT_USER, Feature.SECOND_USER} <= sandboxes.features
        image = await sandboxes.import_image(source)
        (layer,) = sandboxes.store.image(image).layers
        place = sandboxes.store.layers / layer / "mine"
        assert IDS.subordinate is not None
        assert (place.stat().st_uid, place.stat().st_gid) == tuple(
            first + number for first, number in zip(IDS.subordinate, (os.getuid(), os.getgid()), strict=True)
        )
        alone = ImageStore(tmp_path / "alone", None)
        assert import_image(alone, source) == image
        alone.close()
        await sandboxes.close()

    @in_loop
    async def test_processes_of_boxes_have_subordinate_ids(self, sandboxes: EmbeddedSandboxes) -> None:
        box = await sandboxes.create(BoxSpec("host"))
        for user, number in (("root", 0), ("agent", 1000), ("grader", 1001)):
            process = await box.start(["cat"], timeout=60, user=user)
            await process.write(b"ready\n")
            assert (await process.poll(wait=20)).output == b"ready\n"
            (cat,) = [
                each
                for each in psutil.Process(sandboxes._zygote.process.pid).children(recursive=True)
                if each.name() == "cat"
            ]
            assert IDS is not None
            assert IDS.subordinate is not None
            assert set(cat.uids()) == {IDS.subordinate[0] + number}
            assert set(cat.gids()) == {IDS.subordinate[1] + number}
            await process.kill()

    def test_a_store_is_collected(self, store: ImageStore) -> None:
        first = store.add({"a": b"1" * 100_000}, "host", "/work")
        second = store.add({"b": b"2" * 100_000}, "host", "/work")
        done = collect(store, 150_000, grace_seconds=-10)
        assert done.images == (first,)
        assert done.layers == 1
        assert 100_000 <= done.freed_bytes < 150_000
        assert [name for name, _ in store.images()] == [second]

    def test_a_chain_is_merged_behind_an_import(self, store: ImageStore) -> None:
        """What a call leaves to be done behind is done, also when its answer has long been given."""
        layers = [
            store.image(store.add({f"f{number}": b""}, HOST, "/work")).layers[0] for number in range(MERGE_AT + 1)
        ]
        image = Image(HOST, tuple(layers))
        record_in_store_process(store, image)
        deadline = time.monotonic() + 30
        while len(store.stack(image)) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def test_closed_folders_are_measured_and_removed(self, tmp_path: Path) -> None:
        async def body() -> None:
            sandboxes = EmbeddedSandboxes(tmp_path, memory_cells=False)
            box = await sandboxes.create(BoxSpec("host"))
            hide = "mkdir -p d/e && head -c 1000000 /dev/zero >d/e/f && chmod 0 d/e d"
            assert (await box.exec(hide, timeout=20)).code == 0
            assert (await box.stats()).disk_bytes >= 1_000_000
            await sandboxes.create(BoxSpec(await box.snapshot()))
            await sandboxes.close()

        with temporary_store("etude-store-") as folder:
            tmp_path = folder
            asyncio.run(body())
            with pytest.raises(PermissionError):
                remove_tree(folder)
        assert not folder.exists()
