"""The OCI image format: turns an index or manifest into a plan (settings and layers), and a plan into an image. The
blobs may come from a registry or a file.

Invariant: an image is recorded only if the digests of all its blobs and unpacked layers match the manifest and the
configuration.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any, cast

from etude.sandbox.contract import ImageError
from etude.sandbox.images.archive import HashingReader, damage_as_image_error, decompressed, tar_members
from etude.sandbox.images.image import EMPTY, Image, ImageConfig
from etude.sandbox.images.layers import DEFAULT_BOUNDS, Bounds, Unpacker
from etude.sandbox.images.stack import Stack
from etude.sandbox.images.store import ImageStore

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_DIGEST = re.compile(r"(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})")
MAX_JSON = 8 << 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Blob:
    digest: str
    size: int = -1
    media_type: str = ""

    def check(self, data: bytes, what: str) -> bytes:
        """Return the data if it has this blob's digest, or raise ImageError."""
        algorithm, _, expected = self.digest.partition(":")
        if hashlib.new(algorithm, data).hexdigest() != expected:
            raise ImageError(f"{what}: expected {self.digest}, found other content; fetch or make it again")
        return data


@dataclass(frozen=True, slots=True)
class Layer:
    diff_id: str
    open: Callable[[], IO[bytes]]
    blob: Blob | None = None
    """The blob of the layer's tar, usually compressed. None if only the unpacked digest is known."""


@dataclass(frozen=True, slots=True)
class Plan:
    config: ImageConfig
    layers: tuple[Layer, ...]
    """The image's layers, lowest first, as in the OCI format."""


# -- reading the format


def read_json(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{what}: expected JSON, found {data[:40]!r} ({error})") from error
    if not isinstance(found, dict):
        raise ImageError(f"{what}: expected a JSON object, found {type(found).__name__}")
    return found


def blob_of(record: Any, what: str) -> Blob:
    """Return the blob that an OCI descriptor stands for. `what` names the descriptor in error messages."""
    if not isinstance(record, dict) or not isinstance(record.get("digest"), str):
        raise ImageError(f"{what}: expected a descriptor with a digest, found {str(record)[:80]}")
    if not _DIGEST.fullmatch(record["digest"]):
        raise ImageError(f"{what}: expected a sha256 or sha512 digest, found {record['digest'][:80]!r}")
    size = record.get("size", -1)
    if not isinstance(size, int):
        raise ImageError(f"{what}: expected a size in bytes, found {size!r}")
    return Blob(record["digest"], size, str(record.get("mediaType", "")))


def choose(index: dict[str, Any], what: str) -> Blob:
    """Return the blob of the image that an index lists for this machine. Raises ImageError if there is none, or if
    there are several different images under different names."""
    entries = [entry for entry in _list(index, "manifests", what) if isinstance(entry, dict)]
    found, fitting = [], []
    for entry in entries:
        platform_entry, notes = entry.get("platform") or {}, entry.get("annotations") or {}
        if not isinstance(platform_entry, dict) or not isinstance(notes, dict):
            raise ImageError(f"{what}: expected objects as platform and annotations, found {str(entry)[:80]}")
        name = f"{platform_entry.get('os', 'linux')}/{platform_entry.get('architecture', MACHINE)}"
        found.append(name)
        if name == f"linux/{MACHINE}" and "vnd.docker.reference.type" not in notes:
            fitting.append((_title(notes), blob_of(entry, what)))
    if not fitting:
        raise ImageError(f"{what}: expected an image for linux/{MACHINE}, found {', '.join(found) or 'none'}")
    names = {title for title, _ in fitting}
    if len({blob.digest for _, blob in fitting}) > 1 and len(names) > 1:
        raise ImageError(f"{what} holds {len(names)} images ({', '.join(sorted(names))}); save one alone")
    return fitting[0][1]


def read_manifest(data: bytes, what: str) -> tuple[Blob, list[Blob]]:
    """Return the blob of the image's configuration, and the blobs of its layers, lowest first."""
    manifest = read_json(data, what)
    if manifest.get("schemaVersion") != 2:
        raise ImageError(f"{what}: expected a manifest of schema 2, found {manifest.get('schemaVersion')!r}")
    config = blob_of(manifest.get("config"), f"{what}, config")
    if config.media_type.startswith("application/vnd.oci.empty") or "artifactType" in manifest:
        raise ImageError(f"{what}: expected an image, found an artifact ({manifest.get('artifactType')})")
    layers = [blob_of(record, f"{what}, layers") for record in _list(manifest, "layers", what)]
    for layer in layers:
        if "encrypted" in layer.media_type:
            raise ImageError(f"{what}: layer {layer.digest} is encrypted")
    return config, layers


def read_config(data: bytes, what: str) -> tuple[ImageConfig, list[str]]:
    """Return the image's settings, and the diff ids (digests of the unpacked tars) of its layers, lowest first."""
    record = read_json(data, what)
    system, machine = record.get("os", "linux"), record.get("architecture", MACHINE)
    if (system, machine) != ("linux", MACHINE):
        raise ImageError(f"{what}: expected an image for linux/{MACHINE}, found {system}/{machine}")
    diff_ids = _list(record.get("rootfs") or {}, "diff_ids", what)
    if not all(isinstance(text, str) and _DIGEST.fullmatch(text) for text in diff_ids):
        raise ImageError(f"{what}: expected sha256 or sha512 digests as diff_ids")
    config = record.get("config") or {}
    if not isinstance(config, dict):
        raise ImageError(f"{what}: expected an object as config, found {type(config).__name__}")
    env = [text.partition("=")[::2] for text in _texts(config, "Env", what)]
    settings = ImageConfig(
        workdir=str(config.get("WorkingDir") or "/"),
        user=str(config.get("User") or "root"),
        env=tuple((name, value) for name, value in env),
        entrypoint=_texts(config, "Entrypoint", what),
        command=_texts(config, "Cmd", what),
        shell=_texts(config, "Shell", what) or ImageConfig().shell,
    )
    return settings, diff_ids


def _list(record: Any, key: str, what: str) -> list[Any]:
    found = record.get(key) if isinstance(record, dict) else None
    if not isinstance(found, list):
        raise ImageError(f"{what}: expected a list of {key}, found {type(found).__name__}")
    return found


def _texts(record: dict[str, Any], key: str, what: str) -> tuple[str, ...]:
    found = record.get(key) or []
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ImageError(f"{what}: expected a list of texts as {key}, found {str(found)[:80]}")
    return tuple(found)


def _title(notes: dict[str, Any]) -> str:
    """Return the name that the annotations of an image give it."""
    return str(notes.get("io.containerd.image.name") or notes.get("org.opencontainers.image.ref.name") or "unnamed")


# -- making an image


def make_plan(config: bytes, layers: Sequence[tuple[Blob | None, Callable[[], IO[bytes]]]], what: str) -> Plan:
    """Return the plan for an image of this configuration (JSON) and these layers: (blob if known, opener)."""
    settings, diff_ids = read_config(config, what)
    if len(diff_ids) != len(layers):
        raise ImageError(f"{what}: expected {len(diff_ids)} layers, as it has diff_ids, found {len(layers)}")
    both = zip(diff_ids, layers, strict=True)
    return Plan(settings, tuple(Layer(diff_id, opener, blob) for diff_id, (blob, opener) in both))


def chain_names(diff_ids: Sequence[str]) -> list[str]:
    """Return the names under which the store keeps these layers, lowest first. A layer's name depends on all layers
    below it, because they decide which whiteouts it needs and what its folders inherit."""
    names: list[str] = []
    chain = ""
    for diff_id in diff_ids:
        chain = f"sha256:{hashlib.sha256(f'{chain} {diff_id}'.encode()).hexdigest()}" if chain else diff_id
        names.append(chain.partition(":")[2][:64])
    return names


def make_image(store: ImageStore, plan: Plan, origin: str, say: Say, bounds: Bounds = DEFAULT_BOUNDS) -> str:
    """Make the planned image: unpack the layers that the store lacks, lowest first. Return the image's id."""
    names = chain_names([layer.diff_id for layer in plan.layers])
    with store.hold(names):
        for index, (name, layer) in enumerate(zip(names, plan.layers, strict=True)):
            if store.has_layer(name):
                continue
            below = Stack(tuple(store.layers / lower for lower in reversed(names[:index])))
            say(f"layer {index + 1} of {len(names)}: {layer.diff_id[:19]}")
            with store.fresh("layer") as fresh:
                _unpack_layer(layer, Unpacker(layer.diff_id[:19], fresh, below, store.ids, bounds), say)
                store.adopt(fresh, name)
        return store.record(Image(EMPTY, tuple(reversed(names)), plan.config), origin)


def _unpack_layer(layer: Layer, unpacker: Unpacker, say: Say) -> None:
    with closing(layer.open()) as stored:
        raw = HashingReader(stored, _hash_for(layer.blob.digest if layer.blob else layer.diff_id))
        digest = unpack_stream(cast(IO[bytes], raw), unpacker, say, _hash_for(layer.diff_id))
        raw.drain()
        if layer.blob and raw.digest != layer.blob.digest:
            raise ImageError(f"layer {layer.blob.digest} is damaged: its bytes have {raw.digest}; fetch it again")
        if digest != layer.diff_id:
            raise ImageError(f"layer {layer.diff_id} is damaged: unpacked it has {digest}; fetch or make it again")


def unpack_stream(stored: IO[bytes], unpacker: Unpacker, say: Say, hash: hashlib._Hash | None = None) -> str:
    """Unpack a tar, compressed or not. Return the digest of the uncompressed tar. If `hash` is given, a missing end
    mark is accepted, so the caller must compare the digest."""
    with damage_as_image_error(f"layer {unpacker.name}"):
        tar = HashingReader(decompressed(stored), hash or hashlib.sha256(), 2 * unpacker.bounds.bytes + (1 << 20))
        for info, data in tar_members(cast(IO[bytes], tar), require_end=hash is None):
            unpacker.add(info, data)
        tar.drain()
    unpacker.finish()
    say_skipped(unpacker.skipped, say)
    return tar.digest


def _hash_for(digest: str) -> hashlib._Hash:
    return hashlib.new(digest.partition(":")[0])


def say_skipped(skipped: Counter[str], say: Say) -> None:
    if skipped:
        what = ", ".join(f"{count} x {kind}" for kind, count in sorted(skipped.items()))
        say(f"left out, as no box has a use for it: {what}")


def quiet(_: str) -> None:
    """Ignore a progress message. This is the default for `say`."""
