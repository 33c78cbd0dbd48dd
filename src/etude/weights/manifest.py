"""The manifest of a weights version. It is written last: without its manifest a version does not exist.

A manifest is canonical JSON that includes a digest of its other fields, so a flipped byte anywhere in the file is
detected. Among the fields are a checksum of the stored data, and a checksum of the decoded bytes of every tensor.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etude.weights.codec import Codec
from etude.weights.errors import CorruptVersion, UnknownFormat
from etude.weights.tensor import checksum

FORMAT: Literal["etude-weights/1"] = "etude-weights/1"


class Entry(BaseModel):
    """One tensor, and where its bytes are in the version's data object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: Codec
    offset: int = Field(ge=0)
    length: int = Field(ge=0)
    checksum: str
    """xxh3-128 of the tensor's decoded bytes."""


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["etude-weights/1"] = FORMAT
    version: int = Field(ge=0)
    kind: Literal["full", "delta"]
    base: int | None
    """The version from which codecs `delta` and `same` are decoded; None for a full version."""
    depth: int = Field(ge=0)
    """Number of deltas since the last full version (the anchor)."""
    content: str
    """Digest of names, dtypes, shapes and checksums: equal for equal weights, however they are stored."""
    data: str
    """Name of the data object, in the manifest's folder."""
    data_checksum: str
    bytes_stored: int
    bytes_full: int
    share_changed: float
    """Fraction of elements that differ from the base given to `publish`; 1 without a base."""
    tensors: tuple[Entry, ...]


def content_digest(tensors: list[tuple[str, str, tuple[int, ...], str]]) -> str:
    """Return the digest of every tensor's (name, dtype, shape, checksum), whatever the order of the tensors."""
    return checksum(_canonical([[name, dtype, list(shape), total] for name, dtype, shape, total in sorted(tensors)]))


def dump(manifest: Manifest) -> bytes:
    fields = manifest.model_dump(mode="json")
    return _canonical({**fields, "digest": checksum(_canonical(fields))})


def load(raw: bytes, version: int) -> Manifest:
    where = f"manifest of version {version}"
    try:
        fields = json.loads(raw)
        intact = isinstance(fields, dict) and _canonical(fields) == raw
    except (ValueError, RecursionError) as error:
        raise CorruptVersion(f"{where}: not JSON: {error}") from error
    if not intact or fields.pop("digest", None) != checksum(_canonical(fields)):
        raise CorruptVersion(f"{where}: its digest does not match its bytes")
    if fields.get("format") != FORMAT:
        raise UnknownFormat(f"{where}: format {fields.get('format')!r}, this program reads {FORMAT!r}; update it")
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        raise CorruptVersion(f"{where}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
    if manifest.version != version:
        raise CorruptVersion(f"{where}: it says version {manifest.version}")
    return manifest


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
