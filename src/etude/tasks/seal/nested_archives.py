"""Unpacks nested containers: compressed files, archives, git's objects and packs, one inside another.

Depth, the size of each file and the total size are bounded. A damaged container yields whatever can be read of it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import zstandard

from etude.tasks.seal.git_packs import LARGEST, PackError, pack_objects

DEEPEST = 5
MOST = 1 << 30
"""Maximum total size, in bytes, of everything unpacked from one file."""
_OBJECTS = (b"blob ", b"commit ", b"tag ")
_OPENERS: dict[bytes, Callable[[io.BytesIO], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda raw: zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True),
}
_BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError, KeyError, OverflowError),
    *(zlib.error, lzma.LZMAError, zstandard.ZstdError, tarfile.TarError, zipfile.BadZipFile, PackError),
)


class UnpackLimit(Exception):
    """Unpacking a file would exceed the size bounds."""


def unpack_nested(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the file itself, then every file inside it, named "a.whl!b.py". Raises UnpackLimit beyond the bounds."""
    room = MOST
    waiting = [iter([(name, data)])]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        yield found
        room -= len(found[1]) if len(waiting) > 1 else 0
        if room < 0:
            raise UnpackLimit
        if len(waiting) <= DEEPEST:
            waiting.append(_unpack_one(*found))


def _unpack_one(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        for inner, content in _contents_of(data):
            yield f"{name}!{inner}" if inner else f"{name}!", content
    except _BROKEN:
        return  # The data is not an archive, or a damaged one.


def _contents_of(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and contents of each file in an archive or compressed file, or of each of git's objects."""
    if data[:4] == b"PACK":
        yield from pack_objects(data)
    elif data[:4] in (b"PK\3\4", b"PK\5\6"):
        yield from _of_zip(data)
    elif _is_tar(data):
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            yield from _of_tar(opened)
    elif opener := next((make for magic, make in _OPENERS.items() if data.startswith(magic)), None):
        yield from _of_stream(io.BufferedReader(opener(io.BytesIO(data)), 1 << 16))
    elif data[:1] == b"x" and data[1:2] in b"\x01\x5e\x9c\xda":
        yield from _of_object(data)


def _of_zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                with opened.open(info) as member:
                    yield info.filename, _read_bounded(member)


def _of_stream(stream: io.BufferedReader) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of a compressed file or, if it is a tar, of the tar's members. Members are read one by one, so
    a tar is never in memory as a whole."""
    if not _is_tar(stream.peek(512)):
        yield "", _read_bounded(stream)
        return
    with tarfile.open(fileobj=stream, mode="r|") as opened:
        yield from _of_tar(opened)


def _of_tar(opened: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for info in opened:
        content = opened.extractfile(info) if info.isreg() else None
        if content is not None:
            yield info.name, _read_bounded(content)


def _of_object(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of a loose git object, or of any other zlib data."""
    stream = zlib.decompressobj()
    content = stream.decompress(data, LARGEST + 1)
    if len(content) > LARGEST:
        raise UnpackLimit
    kind, _, body = content.partition(b"\0")
    yield ("object", body) if kind.startswith(_OBJECTS) else ("", content)


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _read_bounded(stream: IO[bytes]) -> bytes:
    content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UnpackLimit
    return content
