"""Packs files for a box, and reads tar and zip files that were copied out of one. Those may be malicious, so nothing is
unpacked to disk, every size is checked before memory is taken for it, and reading takes time in proportion to the
archive's own size.

Tars are not read with Python's `tarfile`: it expands sparse files, and some of its versions search headers in quadratic
time. The reader here accepts plain files and folders, with long names as GNU and pax write them.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping

_LARGEST = 8 << 20
_MOST = 2000
_BLOCK = 512
_LONGEST_HEADER = 64 << 10
_FILES, _FOLDER, _LONG_NAME, _PAX, _PAX_OF_ALL = (b"0", b"\0", b"7"), b"5", b"L", b"x", b"g"
_ZIP_ENTRY = b"PK\x01\x02"
_ENCRYPTED = 0x1
_BROKEN_ZIP = (zipfile.BadZipFile, struct.error, OverflowError)


class ArchiveError(Exception):
    """Raised if bytes are not a readable tar or zip, or exceed the size limits. The message says what was expected."""


def tar_of(files: Mapping[str, bytes], executable: Collection[str] = ()) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755 if path in executable else 0o644
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def members_of(data: bytes) -> dict[str, bytes]:
    """Return the contents of a tar's or zip's files by path, without a leading `./`. Raises ArchiveError."""
    found: dict[str, bytes] = {}
    size = 0
    for name, content in _zip(data) if data.startswith(b"PK") else _tar(data):
        found[name.removeprefix("./")] = content
        size += len(content)
        _require_room(len(found), size)
    return found


def _zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    # The list of members is read whole before it can be counted.
    _require_room(data.count(_ZIP_ENTRY), 0)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            rows = [info for info in archive.infolist() if not info.filename.endswith("/")]
            # A file gives at most the bytes that its entry declares.
            _require_room(len(rows), sum(info.file_size for info in rows))
            for info in rows:
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & _ENCRYPTED:
                    raise ArchiveError(f"expected a plain zip: {info.filename} is encrypted or packed in another way")
                with archive.open(info) as file:
                    yield info.filename, file.read(info.file_size + 1)
    except (*_BROKEN_ZIP, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise ArchiveError(f"expected a tar or a zip: {error}") from error


def _tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    if data.startswith(b"\x1f\x8b"):
        data = _unzipped(data)
    if not data:
        raise ArchiveError("expected a tar or a zip: there is nothing in it")
    at, long_name = 0, ""
    pax: dict[str, str] = {}
    while (header := data[at : at + _BLOCK]).strip(b"\0"):
        size, kind = _checked_size(header), header[156:157]
        if kind in _FILES and "size" in pax:
            size = _number(pax["size"].encode(), 10)
        at, end = at + _BLOCK, at + _BLOCK + size
        if end > len(data):
            raise ArchiveError("expected a tar or a zip: a file goes beyond the archive's end")
        if kind in (_LONG_NAME, _PAX, _PAX_OF_ALL):
            if size > _LONGEST_HEADER:
                raise ArchiveError(f"expected names of at most {_LONGEST_HEADER} bytes")
            if kind == _LONG_NAME:
                long_name = _text(data[at:end])
            elif kind == _PAX:
                pax = _pax(data[at:end])
        else:
            name = pax.get("path") or long_name or _name(header)
            if kind not in (*_FILES, _FOLDER) or any(key.startswith("GNU.sparse.") for key in pax):
                raise ArchiveError(f"expected plain files, found {name} of another kind")
            if kind != _FOLDER and not name.endswith("/"):
                yield name, data[at:end]
            long_name, pax = "", {}
        at = end + -size % _BLOCK


def _unzipped(data: bytes) -> bytes:
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
    room = _LARGEST + (_MOST + 20) * 4 * _BLOCK
    try:
        unpacked = unzip.decompress(data, room + 1)
    except zlib.error as error:
        raise ArchiveError(f"expected a tar or a zip: {error}") from error
    if len(unpacked) > room:
        raise ArchiveError(f"expected at most {_MOST} files and {_LARGEST} bytes unpacked")
    return unpacked


def _checked_size(header: bytes) -> int:
    """Return the size field of a header whose checksum is right."""
    checked = header[:148] + b" " * 8 + header[156:]
    if len(header) < _BLOCK or _number(header[148:156], 8) != sum(checked):
        raise ArchiveError("expected a tar or a zip: a header is damaged")
    return _number(header[124:136], 8)


def _number(field: bytes, base: int) -> int:
    """Return a number that an archive's header stores as text, with at most 12 digits. Larger numbers, which tars store
    in binary, would exceed the size limits anyway."""
    digits = field.strip(b" \0")
    if len(digits) > 12 or not (digits or b"0").isdigit():
        raise ArchiveError("expected a tar or a zip: a header has no size")
    try:
        return int(digits or b"0", base)
    except ValueError:
        raise ArchiveError("expected a tar or a zip: a header has no size") from None


def _name(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax(data: bytes) -> dict[str, str]:
    """Return a pax header's records: each is "LENGTH KEY=VALUE" and a newline, and LENGTH counts all of it."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 8)
        length = _number(data[at:space], 10) if space > at else 0
        key, equals, value = data[space + 1 : at + length].partition(b"=")
        if space < 0 or at + length > len(data) or not equals or not value.endswith(b"\n"):
            raise ArchiveError("expected a tar or a zip: a pax header is damaged")
        found[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
        at += length
    return found


def _require_room(count: int, size: int) -> None:
    if count > _MOST or size > _LARGEST:
        raise ArchiveError(f"expected at most {_MOST} files and {_LARGEST} bytes unpacked")
