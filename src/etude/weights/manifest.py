"""The manifest of a weights version. It is written last: without its manifest a version does not exist.

A manifest is canonical JSON that includes a digest of its other fields, so a flipped byte anywhere in the file is
detected. Among the fields are, for every chunk, a checksum of the stored bytes and one of the decoded bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etude.weights.codecs import Codec
from etude.weights.errors import CorruptVersion, UnknownFormat
from etude.weights.format1 import FORMAT1, Manifest1
from etude.weights.tensor import Bytes, bytes_of, checksum

FORMAT: Literal["etude-weights/2"] = "etude-weights/2"

CHUNK_BYTES = 64 << 20
"""A tensor's bytes are cut after every so many: a multiple of every dtype's size."""


class Chunk(NamedTuple):
    """Consecutive bytes of a tensor."""

    codec: Codec
    length: int
    """Bytes stored. They follow those of the chunk before in the part's data object."""
    stored: str
    """xxh3-128 of the stored bytes."""
    decoded: str
    """xxh3-128 of the decoded bytes."""


class Entry(BaseModel):
    """One tensor, under its published name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def sums(self) -> tuple[str, ...]:
        """Checksums of the decoded chunks."""
        return tuple(chunk.decoded for chunk in self.chunks)


class Part(BaseModel):
    """What one process of a publisher wrote: a data object with the chunks of its tensors, one after another."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str
    """Name of the data object, in the manifest's folder."""
    elements: int = Field(ge=0)
    changed: int = Field(ge=0)
    """Number of elements that differ from the base given to the publisher; all without a base."""
    tensors: tuple[Entry, ...]

    @property
    def bytes_stored(self) -> int:
        return sum(chunk.length for entry in self.tensors for chunk in entry.chunks)


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["etude-weights/2"] = FORMAT
    version: int = Field(ge=0)
    base: int | None
    """The version from whose tensors those of this one are decoded; None for a full version (an anchor)."""
    depth: int = Field(ge=0)
    """Number of deltas since the last anchor."""
    content: str
    """Digest of names, dtypes, shapes and checksums: equal for equal weights, however they are stored."""
    parts: tuple[Part, ...]

    @property
    def kind(self) -> Literal["full", "delta"]:
        return "delta" if self.depth else "full"

    @property
    def tensors(self) -> list[Entry]:
        """The tensors of all parts, in the order of their names."""
        return sorted((entry for part in self.parts for entry in part.tensors), key=lambda entry: entry.name)

    @property
    def bytes_stored(self) -> int:
        return sum(part.bytes_stored for part in self.parts)

    @property
    def bytes_full(self) -> int:
        return sum(bytes_of(entry.dtype, entry.shape) for part in self.parts for entry in part.tensors)

    @property
    def share_changed(self) -> float:
        """Fraction of elements that differ from the base given to `publish`; 1 without a base."""
        elements = sum(part.elements for part in self.parts)
        return sum(part.changed for part in self.parts) / elements if elements else 0.0


AnyManifest = Manifest | Manifest1


def cut(data: Bytes) -> Iterator[Bytes]:
    """Return the chunks of a tensor's bytes, as views. A tensor without elements has none."""
    return (data[begin : begin + CHUNK_BYTES] for begin in range(0, data.size, CHUNK_BYTES))


def sums_of(data: Bytes, like: AnyManifest | None = None) -> tuple[str, ...]:
    """Return the checksums of a tensor's chunks, as a manifest of this format has them. In format 1 the whole tensor
    has one."""
    if isinstance(like, Manifest1):
        return (checksum(data),)
    return tuple(checksum(chunk) for chunk in cut(data))


def content_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], Sequence[str]]]) -> str:
    """Return the digest of every tensor's (name, dtype, shape, checksums of its chunks), whatever the order of the
    tensors."""
    rows = [(name, dtype, list(shape), _one(sums)) for name, dtype, shape, sums in tensors]
    return checksum(_canonical(sorted(rows)))


def dump(fields: BaseModel) -> bytes:
    plain = fields.model_dump(mode="json")
    return _canonical({**plain, "digest": checksum(_canonical(plain))})


def load(raw: bytes, version: int) -> AnyManifest:
    where = f"manifest of version {version}"
    fields = intact_fields(raw, where)
    kinds: dict[object, type[AnyManifest]] = {FORMAT: Manifest, FORMAT1: Manifest1}
    kind = kinds.get(fields.get("format"))
    if kind is None:
        raise UnknownFormat(
            f"{where}: format {fields.get('format')!r}, this program reads {FORMAT!r} and {FORMAT1!r}; update it"
        )
    try:
        manifest = kind.model_validate(fields)
    except ValidationError as error:
        raise CorruptVersion(f"{where}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
    if manifest.version != version:
        raise CorruptVersion(f"{where}: it says version {manifest.version}")
    for entry in manifest.tensors if isinstance(manifest, Manifest) else ():
        if len(entry.chunks) != -(-bytes_of(entry.dtype, entry.shape) // CHUNK_BYTES):
            raise CorruptVersion(f"{where}: tensor {entry.name} has {len(entry.chunks)} chunks")
    return manifest


def intact_fields(raw: bytes, where: str) -> dict[str, object]:
    """Return the fields that `dump` was given, if no byte differs."""
    try:
        fields = json.loads(raw)
        intact = isinstance(fields, dict) and _canonical(fields) == raw
    except (ValueError, RecursionError) as error:
        raise CorruptVersion(f"{where}: not JSON: {error}") from error
    if not intact or fields.pop("digest", None) != checksum(_canonical(fields)):
        raise CorruptVersion(f"{where}: its digest does not match its bytes")
    return dict(fields)


def _one(sums: Sequence[str]) -> str:
    return sums[0] if len(sums) == 1 else checksum("".join(sums).encode())


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
