"""Packs files for a box, and reads tar and zip files that were copied out of one. Those may be malicious, so sizes are
bounded and nothing is unpacked to disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Mapping

_LARGEST = 8 << 20
_MOST = 2000


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
    try:
        found = _zip(data) if data.startswith(b"PK") else _tar(data)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        ValueError,
        NotImplementedError,
    ) as error:
        raise ArchiveError(f"expected a tar or a zip: {error}") from error
    except RuntimeError as error:  # Raised for a zip with a password.
        raise ArchiveError(f"expected a plain zip: {error}") from error
    return {name.removeprefix("./"): content for name, content in found.items()}


def _zip(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        rows = [info for info in archive.infolist() if not info.is_dir()]
        _require_room(len(rows), 0)
        found: dict[str, bytes] = {}
        for info in rows:
            with archive.open(info) as file:
                found[info.filename] = file.read(_LARGEST + 1)
            _require_room(len(found), sum(map(len, found.values())))
    return found


def _tar(data: bytes) -> dict[str, bytes]:
    if data.startswith(b"\x1f\x8b"):
        unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
        data = unzip.decompress(data, _LARGEST + 1)
        _require_room(0, len(data))
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for info in archive:
            if info.isdir():
                continue
            if not info.isreg():
                raise ArchiveError(f"expected plain files, found {info.name} of another kind")
            file = archive.extractfile(info)
            found[info.name] = file.read() if file else b""
            _require_room(len(found), 0)
    return found


def _require_room(count: int, size: int) -> None:
    if count > _MOST or size > _LARGEST:
        raise ArchiveError(f"expected at most {_MOST} files and {_LARGEST} bytes unpacked")
