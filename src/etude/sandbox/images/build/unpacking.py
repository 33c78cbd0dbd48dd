"""ADD of a tar archive: copies the archive's content, with its owners, instead of the file itself."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from etude.sandbox.contract import ImageError
from etude.sandbox.images.archive import damage_as_image_error, decompressed
from etude.sandbox.images.build.members import Source, members_of_tar


def unpack_archive(source: Source, open_files: ExitStack, scratch: Path) -> Source:
    """Return the content of the source if it is a tar archive (whatever its name), else the source."""
    opened = source.members[0].open if source.has_top and not source.is_folder else None
    if opened is None:
        return source
    with opened() as file, damage_as_image_error(source.name):
        stream = decompressed(file)
        first = _first_block(stream)
        if not _begins_a_tar(first):
            return source
        # Members are read twice and in any order, for the digest and for packing, so they need an uncompressed file.
        plain = open_files.enter_context(tempfile.TemporaryFile(dir=scratch))  # noqa: SIM115
        plain.write(first)
        shutil.copyfileobj(stream, plain)
        plain.seek(0)
        archive = open_files.enter_context(tarfile.open(fileobj=cast(IO[bytes], plain), mode="r:"))  # noqa: SIM115
        unpacked = Source(source.name, list(members_of_tar(archive, source.name)), owned=True)
        unpacked.digest()  # Read everything now, so that an error names the archive.
    return unpacked


def _first_block(stream: IO[bytes]) -> bytes:
    try:
        with damage_as_image_error("the file"):
            return stream.read(tarfile.BLOCKSIZE)
    except ImageError:
        return b""  # It begins like a compressed file, but is not one.


def _begins_a_tar(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
