"""Cache of embedding vectors on disk, keyed by a hash of their text: one append-only file per embedder, named after it.

A record's checksum is verified when the record is used. A torn or corrupt record is ignored, so its text is embedded
again. If a new vector has another length than the stored ones, the embedder's name now stands for another model, so all
stored vectors are dropped. If the file cannot be written, vectors stay in memory only. Vectors are rounded to the
file's precision before their first use, so that new and stored vectors give the same ranking.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from etude.harness.chunks.embedder import Vectors

MAGIC = b"etude vectors 1\n"
_HEAD = len(MAGIC) + 4
_KEY = 16
_SUM = 8
MOST_BYTES = 400_000_000
"""Maximum size of the cache file in bytes. A larger file is emptied before the next record is written."""


def key_of(text: str) -> bytes:
    return xxhash.xxh3_128_digest(text.encode("utf-8", "replace"))


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude" / "vectors"


class VectorStore:
    """Vectors of one embedding model, in memory and in a file. `name` is the model's name, which selects the file."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=12).hexdigest()
        self.file = (folder or default_folder()) / f"{digest}.vectors"
        self._records: dict[bytes, bytes] | None = None
        """For each key, the checksum and vector as stored in the file; None until the file is read."""

    def get(self, key: bytes) -> Vectors | None:
        record = self._all().get(key)
        if record is None:
            return None
        if _checksum(key, record[_SUM:]) != record[:_SUM]:
            del self._all()[key]
            return None
        return np.frombuffer(record, np.float16, offset=_SUM).astype(np.float32)

    def add(self, keys: Sequence[bytes], vectors: Vectors) -> None:
        known = self._all()
        fresh: list[bytes] = []
        if known and len(next(iter(known.values()))) != _SUM + 2 * vectors.shape[1]:
            known.clear()  # another model has this name now, whose vectors cannot be compared with the stored ones
        for key, vector in zip(keys, vectors.astype(np.float16), strict=True):
            body = vector.tobytes()
            record = _checksum(key, body) + body
            known[key] = record
            fresh.append(key + record)
        try:
            self._append(fresh, vectors.shape[1])
        except OSError:
            return  # the vectors are in memory; a later process has to compute them again

    def _append(self, records: list[bytes], width: int) -> None:
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.file.open("a+b") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            size = out.seek(0, os.SEEK_END)
            out.seek(0)
            head = MAGIC + width.to_bytes(4, "little")
            if out.read(_HEAD) != head or size > MOST_BYTES:
                out.truncate(0)
                out.write(head)
            elif torn := (size - _HEAD) % (_KEY + _SUM + 2 * width):
                out.truncate(size - torn)
            out.write(b"".join(records))

    def _all(self) -> dict[bytes, bytes]:
        if self._records is None:
            self._records = {}
            try:
                data = self.file.read_bytes()
            except OSError:
                return self._records
            width = int.from_bytes(data[len(MAGIC) : _HEAD], "little")
            if data.startswith(MAGIC) and 0 < width < 100_000:
                step = _KEY + _SUM + 2 * width
                for start in range(_HEAD, len(data) - step + 1, step):
                    self._records[data[start : start + _KEY]] = data[start + _KEY : start + step]
        return self._records


def _checksum(key: bytes, body: bytes) -> bytes:
    return xxhash.xxh3_64_digest(key + body)
