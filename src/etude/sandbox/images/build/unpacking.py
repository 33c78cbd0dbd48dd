"""ADD of a tar archive: what is in it instead of the file, with the owners that it says."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from etude.sandbox.contract import ImageError
from etude.sandbox.images.archive import damage_named, decompressed
from etude.sandbox.images.build.members import Source, members_of_tar


def unpack_archive(source: Source, open_files: ExitStack, scratch: Path) -> Source:
    """The source as it is, where it is no archive: what counts is its content, not its name."""
    opened = source.members[0].open if source.has_top and not source.is_folder else None
    if opened is None:
        return source
    with opened() as file, damage_named(source.name):
        stream = decompressed(file)
        first = _first_block(stream)
        if not _begins_a_tar(first):
            return source
        # Members are read twice, for their digest and to be packed: from a plain file, wherever they lie in it.
        plain = open_files.enter_context(tempfile.TemporaryFile(dir=scratch))  # noqa: SIM115
        plain.write(first)
        shutil.copyfileobj(stream, plain)
        plain.seek(0)
        archive = open_files.enter_context(tarfile.open(fileobj=cast(IO[bytes], plain), mode="r:"))  # noqa: SIM115
        unpacked = Source(source.name, list(members_of_tar(archive, source.name)), owned=True)
        unpacked.digest()  # Reads all of it, while damage has a name.
    return unpacked


def _first_block(stream: IO[bytes]) -> bytes:
    try:
        with damage_named("the file"):
            return stream.read(tarfile.BLOCKSIZE)
    except ImageError:
        return b""  # It begins as if it were compressed, and is not.


def _begins_a_tar(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
