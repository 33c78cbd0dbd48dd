"""Images from files: each format gives the boxes that it means, and what is damaged is named."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from tests.contract.sandbox.support import in_loop
from tests.sandbox.image_files import (
    Blobs,
    archive_of,
    busybox_tar,
    config_json,
    digest,
    index_of,
    put_image,
    quick_gzip,
    second_layer,
    write_layout,
)
from tests.sandbox.layer_model import Entry, to_tar
from tests.sandbox.small_root import needs_busybox, static_busybox

from etude.sandbox import BoxSpec, EmbeddedSandboxes, ImageError
from etude.sandbox.images.importing import import_image
from etude.sandbox.images.oci import MACHINE
from etude.sandbox.images.store import ImageStore

pytestmark = needs_busybox
TARS = [busybox_tar(), second_layer()] if static_busybox() else []


def layout(tmp_path: Path, name: str = "layout", compress: Callable[[bytes], bytes] = quick_gzip) -> Path:
    blobs = Blobs()
    return write_layout(tmp_path / name, blobs, index_of(put_image(blobs, TARS, compress)))


def docker_archive(tmp_path: Path) -> Path:
    folder = tmp_path / "docker"
    config = config_json(TARS)
    name = digest(config).removeprefix("sha256:")
    folder.mkdir()
    (folder / f"{name}.json").write_bytes(config)
    layers = []
    for data in TARS:
        inner = folder / digest(data).removeprefix("sha256:")
        inner.mkdir()
        (inner / "layer.tar").write_bytes(data)
        (inner / "VERSION").write_text("1.0")
        layers.append(f"{inner.name}/layer.tar")
    record = [{"Config": f"{name}.json", "RepoTags": ["test:1"], "Layers": layers}]
    (folder / "manifest.json").write_text(json.dumps(record))
    return archive_of(folder, tmp_path / "docker.tar")


# -- root file systems


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress, zstandard.compress])
def test_a_tar_however_compressed_is_one_image(
    tmp_path: Path, store: ImageStore, compress: Callable[[bytes], bytes]
) -> None:
    data = to_tar([Entry("file", "a", "text" * 50_000), Entry("link", "b", "a")])
    (tmp_path / "a.tar").write_bytes(data)
    (tmp_path / "b").write_bytes(compress(data))
    image = import_image(store, tmp_path / "a.tar")
    assert import_image(store, tmp_path / "b") == image
    assert [path.name for path in store.layers.iterdir()] == [digest(data).removeprefix("sha256:")]
    assert store.image(image).pinned


def test_a_folder_is_what_its_tar_is(tmp_path: Path, store: ImageStore) -> None:
    root = tmp_path / "root"
    (root / "d/e").mkdir(parents=True)
    (root / "d/file").write_text("x")
    os.link(root / "d/file", root / "d/again")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    (root / "d/run").write_text("#!/bin/sh")
    (root / "d/run").chmod(0o4711)
    heard: list[str] = []
    made = store.layers / store.image(import_image(store, root, say=heard.append)).layers[0]
    assert (made / "d/again").stat().st_ino == (made / "d/file").stat().st_ino
    assert (made / "link").readlink() == Path("/etc/passwd")
    assert (made / "pipe").is_fifo()
    assert (made / "d/run").stat().st_mode & 0o7777 == 0o711
    assert heard == ["left out, as no box has a use for it: 1 x set-uid or set-gid bit"]
    assert (made / "d/file").stat().st_mtime == int((root / "d/file").stat().st_mtime)


def test_the_same_content_is_stored_once(tmp_path: Path, store: ImageStore) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b").write_text("b")
        (tmp_path / name / "a").write_text("a")
        for path in (tmp_path / name / "a", tmp_path / name / "b", tmp_path / name):
            os.utime(path, (7, 7))
    assert import_image(store, tmp_path / "one") == import_image(store, tmp_path / "two")
    assert len(list(store.layers.iterdir())) == 1


# -- archives of images


def test_all_carriers_of_an_image_give_the_same(tmp_path: Path, store: ImageStore) -> None:
    folder = layout(tmp_path)
    image = import_image(store, folder)
    sources = [
        archive_of(folder, tmp_path / "oci.tar"),
        archive_of(folder, tmp_path / "oci.tar.gz", "w:gz"),
        layout(tmp_path, "zstd", zstandard.compress),
        layout(tmp_path, "plain", bytes),
        docker_archive(tmp_path),
    ]
    assert {import_image(store, source) for source in sources} == {image}
    config = store.image(image).config
    assert (config.user, config.workdir, config.entrypoint, config.command) == (
        "1000",
        "/srv",
        ("/bin/sh",),
        ("-c", "true"),
    )
    assert dict(config.env) == {"GREETING": "hello=there", "PATH": "/bin"}
    assert len(list(store.layers.iterdir())) == 2


@in_loop
async def test_a_box_of_an_imported_image(sandboxes: EmbeddedSandboxes, tmp_path: Path) -> None:
    source = docker_archive(tmp_path)
    box = await sandboxes.create(BoxSpec(import_image(sandboxes.store, source)))
    seen = await box.exec("pwd; cat who; echo; echo $GREETING; id -u; ls /bin; stat -c %u who", timeout=10)
    assert seen.code == 0, seen
    lines = seen.stdout.decode().split("\n")[:-1]
    assert lines[:3] == ["/srv", "layered", "hello=there"]
    assert "env" not in lines[4:-1]
    assert {"sh", "busybox"} < set(lines[4:-1])
    if sandboxes.host.ids is not None:
        assert (lines[3], lines[-1]) == ("1000", "1000")


def test_an_index_is_searched_for_this_machine(tmp_path: Path, store: ImageStore) -> None:
    blobs = Blobs()
    other = put_image(blobs, [second_layer()], architecture="mips") | {
        "platform": {"os": "linux", "architecture": "mips"}
    }
    ours = put_image(blobs, TARS) | {"platform": {"os": "linux", "architecture": MACHINE}}
    proof = put_image(blobs, []) | {"platform": {"os": "unknown", "architecture": "unknown"}}
    inner = blobs.put(index_of(proof, other, ours), "application/vnd.oci.image.index.v1+json")
    image = import_image(store, write_layout(tmp_path / "multi", blobs, index_of(inner)))
    assert image == import_image(store, layout(tmp_path))
    with pytest.raises(ImageError, match=f"expected an image for linux/{MACHINE}, found linux/mips"):
        import_image(store, write_layout(tmp_path / "foreign", blobs, index_of(other)))


def damaged(tmp_path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A layout in which something is not as it was."""
    blobs = Blobs()
    manifest = put_image(blobs, TARS)
    change(blobs)
    return write_layout(tmp_path / "damaged", blobs, index_of(manifest))


def biggest(blobs: dict[str, bytes]) -> str:
    return max(blobs, key=lambda name: len(blobs[name]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda blobs: blobs.update({biggest(blobs): gzip.compress(second_layer())}),
            "layer sha256:[0-9a-f]{64} is damaged: its bytes have sha256:",
        ),
        (lambda blobs: blobs.update({biggest(blobs): blobs[biggest(blobs)][:-100]}), "is damaged"),
        (lambda blobs: blobs.update({biggest(blobs): b"no gzip"}), "is damaged"),
        (lambda blobs: blobs.pop(biggest(blobs)), "lacks blobs/sha256/"),
        (
            lambda blobs: blobs.update({name: b"{}" for name in blobs if b"layers" in blobs[name][:300]}),
            "expected sha256:",
        ),
    ],
)
def test_damage_in_a_layout(tmp_path: Path, store: ImageStore, change: Callable[..., None], says: str) -> None:
    with pytest.raises(ImageError, match=says):
        import_image(store, damaged(tmp_path, change))
    assert list(store.layers.iterdir()) == []


def test_a_lie_about_an_unpacked_layer_is_found(tmp_path: Path, store: ImageStore) -> None:
    """All blobs have their digests, but the configuration names another diff id."""
    blobs = Blobs()
    lie = {"type": "layers", "diff_ids": [digest(b"other"), digest(TARS[1])]}
    manifest = put_image(blobs, TARS, rootfs=lie)
    with pytest.raises(ImageError, match=rf"layer {digest(b'other')} is damaged: unpacked it has {digest(TARS[0])}"):
        import_image(store, write_layout(tmp_path / "lie", blobs, index_of(manifest)))


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"{", "expected JSON"),
        (b"[]", "expected a JSON object"),
        (b"{}", "expected a list of manifests"),
        (b'{"manifests": []}', "found none"),
        (b'{"manifests": [{"digest": "sha256:../../etc"}]}', "expected a sha256 or sha512 digest"),
        (b'{"manifests": [{"digest": 4}]}', "expected a descriptor with a digest"),
    ],
)
def test_an_index_that_is_none(tmp_path: Path, store: ImageStore, record: bytes, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        import_image(store, write_layout(tmp_path / "bad", Blobs(), record))


def test_an_archive_of_several_images_asks_for_one(tmp_path: Path, store: ImageStore) -> None:
    blobs = Blobs()
    name = "org.opencontainers.image.ref.name"
    both = [put_image(blobs, [data]) | {"annotations": {name: f"tag-{len(data)}"}} for data in TARS]
    with pytest.raises(ImageError, match=r"holds 2 images \(tag-\d+, tag-\d+\); save one alone"):
        import_image(store, write_layout(tmp_path / "both", blobs, index_of(*both)))


def test_what_is_no_image_at_all(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(ImageError, match="no such file or folder"):
        import_image(store, tmp_path / "nowhere")
    for content in (b"", b"#!/bin/sh\necho no tar\n" * 100, gzip.compress(b"neither")):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ImageError, match="is damaged"):
            import_image(store, tmp_path / "file")


def sparse_map(count: int) -> bytes:
    """A file whose map of holes lies before its content, in as many numbers as one likes. They are long, since it is
    their bytes that are limited, and reading many takes long."""
    info = tarfile.TarInfo("GNUSparseFile.0/file")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "file"}
    body = f"{count}\n".encode() + (b"0" * 31 + b"\n") * 2 * count
    info.size = len(body)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(body))
    return packed.getvalue()


def headers_on_headers(count: int) -> bytes:
    info = tarfile.TarInfo("file")
    info.pax_headers = {"comment": "more follows"}
    member = info.tobuf(tarfile.PAX_FORMAT)
    return member[:-512] * count + member[-512:] + bytes(1024)


def of_one_file(name: str, data: bytes = b"", link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), tarfile.SYMTYPE if link else tarfile.REGTYPE, link
    return info.tobuf() + data + bytes(-len(data) % 512) + bytes(1024)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (sparse_map(160_000), "headers of one member have more than"),
        (headers_on_headers(3000), "is damaged"),
        (of_one_file("manifest.json", link="manifest.json"), "a link to itself"),
        (of_one_file("manifest.json", b"[" * 200_000), "manifest.json is damaged"),
    ],
    ids=["a map that fills memory", "headers on headers", "a link to itself", "nested JSON"],
)
def test_archives_without_end(tmp_path: Path, store: ImageStore, data: bytes, says: str) -> None:
    (tmp_path / "bomb").write_bytes(gzip.compress(data, 1))
    with pytest.raises(ImageError, match=says):
        import_image(store, tmp_path / "bomb")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("podman") is None or os.geteuid() != 0, reason="needs podman and root")
@pytest.mark.parametrize("style", ["oci-archive", "docker-archive", "oci-dir"])
def test_what_podman_saves(tmp_path: Path, store: ImageStore, style: str) -> None:
    (tmp_path / "root.tar").write_bytes(TARS[0])
    short = tempfile.mkdtemp(dir="/tmp")  # podman allows 50 characters.
    podman = ["podman", "--root", f"{tmp_path}/podman", "--runroot", short, "--storage-driver", "vfs"]
    change = ["--change", "ENV A=b", "--change", "WORKDIR /srv", "--change", 'CMD ["sh"]']
    subprocess.run([*podman, "import", *change, str(tmp_path / "root.tar"), "box:1"], check=True, capture_output=True)
    saved = tmp_path / "saved"
    subprocess.run([*podman, "save", "--format", style, "-o", str(saved), "box:1"], check=True, capture_output=True)
    shutil.rmtree(short)
    image = store.image(import_image(store, saved))
    assert image.layers == (digest(TARS[0]).removeprefix("sha256:"),)
    assert (image.config.workdir, dict(image.config.env)["A"], image.config.command) == ("/srv", "b", ("sh",))


# -- interruptions and others at work

IMPORTER = """
import sys
import tempfile
from pathlib import Path
from etude.sandbox.images.importing import import_image
from etude.sandbox.images.store import ImageStore
store = ImageStore(Path(sys.argv[1]), None)
print("begun", flush=True)
print(import_image(store, Path(sys.argv[2])), flush=True)
store.close()
"""


def importer(tmp_path: Path, source: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IMPORTER, str(tmp_path / "store"), str(source)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_in_the_middle_nothing_is_visible(tmp_path: Path) -> None:
    source = tmp_path / "root.tar"
    source.write_bytes(to_tar(Entry("file", f"f{number}", "x" * 100) for number in range(20_000)))
    with importer(tmp_path, source) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (scratch,) = (tmp_path / "store/owners").iterdir()
        deadline = time.monotonic() + 30
        while not list(scratch.glob("layer-*/f9")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.kill()
    assert list(scratch.glob("layer-*/f9")) != []
    store = ImageStore(tmp_path / "store", None)
    assert list(store.layers.iterdir()) == list((store.root / "images").iterdir()) == []
    assert [path.name for path in (store.root / "owners").iterdir()] == [store.owner]
    store.close()


def test_two_processes_import_the_same_at_once(tmp_path: Path) -> None:
    source = archive_of(layout(tmp_path), tmp_path / "oci.tar")
    runs = [importer(tmp_path, source) for _ in range(2)]
    answers = []
    for process in runs:
        with process:
            assert process.stdout is not None
            answers.append(process.stdout.read().split()[-1])
        assert process.returncode == 0
    assert len(set(answers)) == 1
    assert list((tmp_path / "store/owners").iterdir()) == []
