"""Saves and loads the search index of a folder as one file, which is replaced atomically and used only if its checksum
is correct.

The file is memory-mapped, so that processes share its pages. Writers never wait for each other: each writes a complete
file, and the last one written stays. A file with the index of another folder, or in another layout, is ignored.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from etude.harness.search.grams import LEAST_BITS, MOST_BITS
from etude.harness.search.index import Index
from etude.harness.search.shards import Shard

MAGIC = b"etude grep index 1\n"
_DIGEST = 16
_ALIGN = 64


def place_of(root: bytes, cache: Path | None = None) -> Path:
    base = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "etude" / "grep" / f"{hashlib.blake2b(root, digest_size=12).hexdigest()}.index"


def save(index: Index, root: bytes, place: Path) -> None:
    index.compact()
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.stem}.")
    try:
        with os.fdopen(handle, "wb") as out:
            digest = xxhash.xxh3_128()
            out.write(MAGIC + bytes(_DIGEST))
            for part in _parts(index, root):
                digest.update(part)
                out.write(part)
            out.seek(len(MAGIC))
            out.write(digest.digest())
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(root: bytes, place: Path) -> Index | None:
    """Load the index of `root`. None if the file is missing or damaged, or is of another folder or another layout."""
    try:
        with place.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
    start = len(MAGIC) + _DIGEST
    if whole[: len(MAGIC)] != MAGIC or whole[len(MAGIC) : start] != xxhash.xxh3_128(whole[start:]).digest():
        return None
    size = int.from_bytes(whole[start : start + 8], "little")
    head = json.loads(bytes(whole[start + 8 : start + 8 + size]))
    if bytes.fromhex(head["root"]) != root or head["bits"] != [LEAST_BITS, MOST_BITS]:
        return None
    arrays = [
        np.frombuffer(whole, kind, int(np.prod(shape)), start + at).reshape(shape) for kind, shape, at in head["arrays"]
    ]
    names, states, always, linked, *shards = arrays
    paths = names.tobytes().split(b"\0")[:-1]
    index = Index(paths, [tuple(state) for state in states.tolist()], set(always.tolist()), set(linked.tolist()))
    index.shards = [Shard(rows, files) for rows, files in zip(shards[::2], shards[1::2], strict=True)]
    index.ids = {path: file for file, path in enumerate(paths)}
    return index


def _parts(index: Index, root: bytes) -> Iterator[bytes | memoryview]:
    arrays: list[NDArray[Any]] = [
        np.frombuffer(b"".join(path + b"\0" for path in index.paths), np.uint8),
        np.array(index.states, np.int64).reshape(-1, 4),
        np.array(sorted(index.always), np.int32),
        np.array(sorted(index.linked), np.int32),
    ]
    for shard in index.shards:
        arrays += [shard.rows, shard.files]
    # The head contains the offsets of the arrays, which depend on its length, so a fixed length is reserved for it.
    at = first = _padded(256 + 96 * len(arrays) + 2 * len(root))
    layout = []
    for array in arrays:
        layout.append((array.dtype.str, array.shape, at))
        at += _padded(array.nbytes)
    head = {"root": root.hex(), "bits": [LEAST_BITS, MOST_BITS], "arrays": layout}
    text = json.dumps(head).encode()
    yield len(text).to_bytes(8, "little") + text.ljust(first - 8)
    for array in arrays:
        yield array.tobytes()
        yield bytes(_padded(array.nbytes) - array.nbytes)


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
