"""The store: merged chains show the same, leases hold what boxes stand on, and the budget is kept by letting go."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.contract.sandbox.support import in_loop
from tests.sandbox.layer_model import Entry, apply_layers, to_tar
from tests.sandbox.test_images_layers import add_layers, expected, paths, seen

from etude.sandbox import BoxSpec, EmbeddedSandboxes, Feature, ImageError, RequestRefused
from etude.sandbox.images.collect import collect, image_bytes
from etude.sandbox.images.image import HOST, Image, ImageConfig
from etude.sandbox.images.importing import import_image
from etude.sandbox.images.owners import disk_bytes, remove_tree
from etude.sandbox.images.store import MAX_LAYERS, MERGE_AT, ImageStore, merged_name

FAR = 10**15


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSandboxes]:
    sandboxes = EmbeddedSandboxes(tmp_path_factory.mktemp("boxes"))
    yield sandboxes
    asyncio.run(sandboxes.close())


def chain(store: ImageStore, count: int, size: int = 10) -> list[str]:
    """Images, each of one more layer than the one before."""
    images, below = [], HOST
    for number in range(count):
        below = store.add({f"f{number}": b"x" * size, "last": str(number).encode()}, below, "/work")
        images.append(below)
    return images


# -- merging

changes = st.builds(
    Entry,
    st.sampled_from(["file", "folder", "link", "whiteout", "whiteout", "opaque"]),
    paths,
    st.sampled_from("xy"),
    st.sampled_from([0o644, 0o755]),
    st.sampled_from([0, 1000]),
)


def valid(layers: list[list[Entry]]) -> bool:
    try:
        apply_layers(layers)
    except Exception:  # noqa: BLE001
        return False
    return True


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.lists(changes, max_size=5), min_size=2, max_size=5).filter(valid), st.integers(0, 3))
@example([[Entry("file", "t/a/b")], [Entry("opaque", "t/a"), Entry("file", "t/a/a")], [Entry("file", "t/b")]], 1)
@example([[Entry("file", "t/a/b")], [Entry("file", "t/a")], [Entry("folder", "t/a")]], 1)
def test_a_merged_chain_shows_the_same(backend: EmbeddedSandboxes, layers: list[list[Entry]], kept: int) -> None:
    """Also where only the upper part of a chain is merged, and lies over the rest."""
    store = backend.store
    image = store.image(add_layers(backend, [to_tar(layer) for layer in layers]))
    owners = Feature.ROOT_USER in backend.features
    store.merge(image)
    assert len(store.stack(image)) == 1
    meaning = expected(apply_layers(layers), owners=owners)
    assert seen(backend, image.id) == meaning
    upper = image.layers[: max(1, len(image.layers) - kept)]
    store.merge(Image(HOST, upper, ImageConfig()))
    over = (merged_name(upper) if len(upper) > 1 else upper[0], *image.layers[len(upper) :])
    assert seen(backend, store.record(Image(HOST, over, ImageConfig()))) == meaning


def test_long_chains_are_merged_in_the_background(store: ImageStore) -> None:
    images = chain(store, MERGE_AT + 1)
    for thread in threading.enumerate():
        if thread.name == "merge-layers":
            store._background._jobs.put(None)
            thread.join(20)
    image = store.image(images[-1])
    assert len(image.layers) == MERGE_AT + 1
    (merged,) = store.stack(image)
    assert (store.layers / merged / "work/last").read_text() == str(MERGE_AT)
    names = {path.name for path in (store.layers / merged / "work").iterdir()}
    assert names == {"last", *(f"f{n}" for n in range(MERGE_AT + 1))}
    further = store.image(store.add({"more": b""}, images[-1], "/work"))
    assert store.stack(further) == (further.layers[0], merged), "what stands on a merged chain stands on one layer"


@in_loop
async def test_no_chain_is_too_long(backend: EmbeddedSandboxes) -> None:
    """More layers than overlayfs could take at once."""
    store = backend.store
    image = chain(store, 3 * MAX_LAYERS)[-1]
    assert len(store.stack(store.image(image))) <= MAX_LAYERS
    box = await backend.create(BoxSpec(image))
    assert await box.read_file("last") == str(3 * MAX_LAYERS - 1).encode()
    assert await box.read_file("f0") == b"x" * 10
    await box.destroy()


def test_a_merge_takes_no_disk(store: ImageStore) -> None:
    image = store.image(chain(store, 5, size=1 << 20)[-1])
    before = disk_bytes(store.layers)
    store.merge(image)
    assert disk_bytes(store.layers) - before < 1 << 16


# -- leases and the budget


def test_the_least_recently_used_go_first(store: ImageStore) -> None:
    images = [store.add({"f": bytes([n]) * (1 << 20)}, HOST, "/work") for n in range(4)]
    for age, image in enumerate(images):
        os.utime(store.root / "images" / f"{image}.json", (1000 - age, 1000 - age))
    size = image_bytes(store, images[0])
    done = collect(store, 2 * size + size // 2, grace_seconds=-FAR)
    assert done.images == (images[3], images[2])
    assert done.layers == 2
    assert done.freed_bytes == 2 * size
    assert done.kept_bytes == 2 * size
    assert [name for name, _ in store.images()] == [images[1], images[0]]
    with pytest.raises(RequestRefused, match="no image"):
        store.image(images[2])
    assert disk_bytes(store.layers) < 2 * size + (1 << 16)


def test_a_layer_goes_with_the_last_image_that_needs_it(store: ImageStore) -> None:
    images = chain(store, 3)
    store.forget(images[2])
    assert collect(store, FAR, grace_seconds=-FAR).layers == 1
    store.forget(images[0])
    assert collect(store, FAR, grace_seconds=-FAR).layers == 0
    store.forget(images[1])
    assert collect(store, FAR, grace_seconds=-FAR).layers == 2


def test_what_is_new_is_left_alone(store: ImageStore) -> None:
    image = chain(store, 1)[0]
    assert collect(store, 0) == collect(store, 0)
    assert store.image(image)
    store.forget(image)
    assert collect(store, 0).layers == 0, "a layer without an image may be about to get one"
    assert collect(store, 0, grace_seconds=-FAR).layers == 1


HOLDER = """
import sys
from pathlib import Path
from etude.sandbox.images.store import ImageStore
store = ImageStore(Path(sys.argv[1]), None)
store.lease(store.image(sys.argv[2]))
print("leased", flush=True)
sys.stdin.read()
"""


def test_a_lease_of_another_process_ends_with_it(store: ImageStore) -> None:
    image = chain(store, 1)[0]
    command = [sys.executable, "-c", HOLDER, str(store.root), image]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "leased\n"
        assert collect(store, 0, grace_seconds=-FAR).images == ()
        holder.kill()
    assert collect(store, 0, grace_seconds=-FAR).images == (image,)


@in_loop
async def test_a_living_box_keeps_its_files(backend: EmbeddedSandboxes) -> None:
    """Its image is forgotten, merged, and collected around it."""
    store = backend.store
    images = chain(store, 3, size=5000)
    box = await backend.create(BoxSpec(images[-1]))
    store.merge(store.image(images[-1]))
    for image, _ in list(store.images()):
        store.forget(image)
    collect(store, 0, grace_seconds=-FAR)
    assert (await box.exec("cat f0 f1 f2 | wc -c", timeout=5)).stdout == b"15000\n"
    (child,) = await box.fork()
    await box.destroy()
    collect(store, 0, grace_seconds=-FAR)
    assert (await child.exec("cat f0 f1 f2 | wc -c", timeout=5)).stdout == b"15000\n"
    await child.destroy()
    collect(store, 0, grace_seconds=-FAR)
    assert list(store.layers.iterdir()) == []


def test_a_damaged_image_is_named(store: ImageStore) -> None:
    image = chain(store, 1)[0]
    path = store.root / "images" / f"{image}.json"
    path.write_text("{")
    with pytest.raises(ImageError, match=f"image {image}: .* is damaged"):
        store.image(image)
    path.unlink()
    remove_tree(store.layers / store.image(chain(store, 1)[0]).layers[0])
    with pytest.raises(ImageError, match="lacks its layers"):
        store.image(image)


def test_ids_do_not_depend_on_who_made_them(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has ids to give away")
    from etude.sandbox.images.ids import IdRange

    (tmp_path / "root.tar").write_bytes(to_tar([Entry("file", "a", "x", owner=33)]))
    both = [ImageStore(tmp_path / name, ids) for name, ids in (("own", None), ("wide", IdRange(2_000_000_000)))]
    images = [(store.add({"a": b"1"}, HOST, "/work"), import_image(store, tmp_path / "root.tar")) for store in both]
    for store in both:
        store.close()
    assert images[0] == images[1]


SMALL_DISK = """
import sys
from pathlib import Path
from etude.sandbox import DiskFull
from etude.sandbox.images.importing import import_image
from etude.sandbox.images.store import ImageStore
store = ImageStore(Path("store"), None)
try:
    import_image(store, Path(sys.argv[1]))
except DiskFull as error:
    print(error, [path.name for path in store.scratch.iterdir()], list(store.layers.iterdir()))
store.close()
"""


def test_a_full_disk_is_told_apart(tmp_path: Path) -> None:
    """On a file system of 1 MiB, which goes with its process."""
    (tmp_path / "root.tar").write_bytes(to_tar([Entry("file", "a", "x" * (2 << 20))]))
    (tmp_path / "disk").mkdir()
    mounted = f'mount -t tmpfs -o size=1m small {tmp_path}/disk && cd {tmp_path}/disk && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted, "sh", sys.executable, "-c", SMALL_DISK]
    done = subprocess.run([*command, str(tmp_path / "root.tar")], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("no room in store; `etude sandbox images collect` frees"), done
    assert done.stdout.endswith("['lock', 'leases'] []\n") or done.stdout.endswith("['leases', 'lock'] []\n")
