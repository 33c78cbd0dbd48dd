"""Reads archive streams: decompresses them, hashes them on the way, and splits them into their members.

A truncated or damaged tar raises `ImageError`; tarfile itself would stop silently at the first bad header.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

import zstandard

from etude.sandbox.contract import ImageError

_CHUNK = 1 << 20
_LONG_HEADERS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
_HEADER, _HEADERS = 1 << 20, 8 << 20
"""Maximum bytes of one tar header, and of all headers of one member together. Maps of sparse files and chained headers
count too."""
_DAMAGE = (
    *(tarfile.TarError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile),
    RecursionError,  # Raised for headers, links or JSON that are nested too deep.
)


class HashingReader(io.RawIOBase):
    """A stream that passes on the bytes of another stream, and hashes and counts them. `limit` is the maximum number of
    bytes; 0 means no limit."""

    def __init__(self, stream: IO[bytes], hash: hashlib._Hash, limit: int = 0) -> None:
        self._stream, self._limit = stream, limit
        self.hash, self.count = hash, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self.hash.update(data)
        self.count += len(data)
        if self._limit and self.count > self._limit:
            raise ImageError(f"the archive grows beyond {self._limit} bytes when it is decompressed")
        buffer[: len(data)] = data
        return len(data)

    @property
    def digest(self) -> str:
        return f"{self.hash.name}:{self.hash.hexdigest()}"

    def drain(self) -> None:
        """Read to the end of the stream, since bytes after the end of a tar count towards its digest."""
        while self.read(_CHUNK):
            pass


def decompressed(stream: IO[bytes]) -> IO[bytes]:
    """Return a stream of the decompressed content of `stream`. Gzip, zstd, xz and bzip2 are recognized by their first
    bytes; an uncompressed stream is passed on, with a buffer. The caller still has to close `stream`."""
    buffered = (
        stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stream), _CHUNK)
    )
    first = buffered.peek(6)[:6]
    if first.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=buffered))
    if first.startswith(b"\x28\xb5\x2f\xfd"):
        reader = zstandard.ZstdDecompressor().stream_reader(buffered, read_across_frames=True, closefd=False)
        return cast(IO[bytes], io.BufferedReader(cast(io.RawIOBase, reader), _CHUNK))
    if first.startswith(b"\xfd7zXZ\x00"):
        return cast(IO[bytes], lzma.LZMAFile(buffered))
    if first.startswith(b"BZh"):
        return cast(IO[bytes], bz2.BZ2File(buffered))
    return buffered


class _LimitedHeaders:
    """The byte stream of a tar, with a limit on headers: a highly compressed header could otherwise fill the memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left: int | None = None

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise tarfile.ReadError(f"the headers of one member have more than {_HEADERS} bytes")
        return data

    @contextlib.contextmanager
    def headers(self) -> Iterator[None]:
        """Count bytes read in this block as one member's headers. Blocks may nest, as some headers contain others."""
        outermost = self._left is None
        self._left = _HEADERS if self._left is None else self._left
        try:
            yield
        finally:
            if outermost:
                self._left = None


class _Member(tarfile.TarInfo):
    """A tar member whose header is limited in size, and checked strictly where tarfile is lenient."""

    _damage: tuple[type[Exception], ...] = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0 or (info.type in _LONG_HEADERS and info.size > _HEADER):
            raise tarfile.ReadError(f"a header says that {info.size} bytes follow")
        return info

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _Member:
        try:
            with cast(Any, tar.fileobj).fileobj.headers():
                return super().fromtarfile(tar)
        except cls._damage as error:
            raise tarfile.ReadError(f"bad header at byte {tar.offset}: {error}") from error


class _MemberBeforeEndMark(_Member):
    """A tar member that must be followed by another or by the end mark, or the tar counts as truncated. It is not used
    where the tar's digest is checked, since some programs write no end mark."""

    _damage = (*_Member._damage, tarfile.EmptyHeaderError)  # type: ignore[attr-defined]


@contextlib.contextmanager
def damage_as_image_error(what: str) -> Iterator[None]:
    """Convert exceptions that a damaged archive causes in this block to an ImageError. `what` names the archive."""
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        # Without a number, an OSError is not the kernel's: bz2 raises it for damaged data.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ImageError(f"{what} is damaged ({error}); fetch or make it again") from error


def tar_members(stream: IO[bytes], *, require_end: bool = False) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield each member with its content, which must be read before the next member. With `require_end`, a tar without
    an end mark counts as damaged."""
    kind = _MemberBeforeEndMark if require_end else _Member
    counted = cast(IO[bytes], _LimitedHeaders(stream))
    with tarfile.open(fileobj=counted, mode="r|", bufsize=_CHUNK, tarinfo=kind, errors="surrogateescape") as tar:
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every member it has seen.
            yield info, tar.extractfile(info) if info.isreg() else None
