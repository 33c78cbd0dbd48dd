"""Images as files, written by hand: a root of a static busybox, and the archives that carry it."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.sandbox.layer_model import Entry, to_tar
from tests.sandbox.small_root import static_busybox

from etude.sandbox.images.oci import MACHINE

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = {
    "User": "1000",
    "Env": ["GREETING=hello=there", "PATH=/bin"],
    "WorkingDir": "/srv",
    "Entrypoint": ["/bin/sh"],
    "Cmd": ["-c", "true"],
}


def busybox_tar() -> bytes:
    """A layer of a static busybox and its links. For tests that are marked `needs_busybox`."""
    busybox = static_busybox()
    assert busybox is not None, "the test needs_busybox"
    buffer = io.BytesIO(to_tar([]))
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("bin/busybox")
        info.size, info.mode, info.mtime = busybox.stat().st_size, 0o755, 1_000_000_000
        with busybox.open("rb") as file:
            tar.addfile(info, file)
        for name in ("sh", "cat", "id", "ls", "stat", "pwd", "env"):
            info = tarfile.TarInfo(f"bin/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(info)
    return buffer.getvalue()


def second_layer() -> bytes:
    entries = [Entry("file", "srv/who", "layered", owner=1000), Entry("whiteout", "bin/env"), Entry("folder", "tmp")]
    return to_tar(entries)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Blobs(dict[str, bytes]):
    """By digest."""

    def put(self, data: bytes, media_type: str) -> dict[str, Any]:
        self[digest(data)] = data
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def config_json(tars: Sequence[bytes], **facts: Any) -> bytes:
    record = {"architecture": MACHINE, "os": "linux", "config": CONFIG}
    record["rootfs"] = {"type": "layers", "diff_ids": [digest(data) for data in tars]}
    return json.dumps(record | facts).encode()


@functools.cache
def quick_gzip(data: bytes) -> bytes:
    """Once for each layer, since a layer is the same in many images."""
    return gzip.compress(data, 1)


def put_image(
    blobs: Blobs, tars: Sequence[bytes], compress: Callable[[bytes], bytes] = quick_gzip, **facts: Any
) -> dict[str, Any]:
    """The descriptor of the manifest."""
    layers = [blobs.put(compress(data), "application/vnd.oci.image.layer.v1.tar+gzip") for data in tars]
    config = blobs.put(config_json(tars, **facts), "application/vnd.oci.image.config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
    return blobs.put(json.dumps(manifest).encode(), MANIFEST)


def index_of(*manifests: dict[str, Any]) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": list(manifests)}).encode()


def write_layout(folder: Path, blobs: Blobs, index: bytes) -> Path:
    (folder / "blobs/sha256").mkdir(parents=True)
    for name, data in blobs.items():
        (folder / "blobs" / name.replace(":", "/")).write_bytes(data)
    (folder / "index.json").write_bytes(index)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def archive_of(folder: Path, path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name in sorted(inner.name for inner in folder.iterdir()):
            tar.add(folder / name, name)
    return path
