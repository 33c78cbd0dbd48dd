"""Copies and hashes the content of files without reading or writing their holes: a file of any length costs only what
it really holds."""

from __future__ import annotations

import errno
import os

# The same function as in hashlib, but without loading OpenSSL: every box's pid 1 is a copy of a process that has loaded
# this module.
from _blake2 import blake2b
from collections.abc import Iterator

_BLOCK = 1 << 17
_ZEROS = bytes(_BLOCK)
_MOST_AT_ONCE = 1 << 20


class Changed(Exception):
    """A process changed the files while they were read. The message names the path."""


def copy(old: int, new: int, info: os.stat_result) -> None:
    """Copy the open file `old`, which `info` describes, to the empty file `new`."""
    at = 0
    for start, end in _segments(old, info):
        at = start
        os.lseek(new, at, os.SEEK_SET)
        while at < end:
            sent = os.sendfile(new, old, at, min(end - at, _MOST_AT_ONCE))
            if not sent:
                raise Changed("a file became shorter")
            at += sent
    if at < info.st_size:
        os.ftruncate(new, info.st_size)


def digest_of(old: int, info: os.stat_result, new: int | None = None) -> bytes:
    """Return a digest of the open file `old`, which `info` describes. It does not depend on where the file has holes.
    With `new`, an empty file, also copy the content to it.

    The digest covers the size and every block that is not all zeros, with its position."""
    digest = blake2b(info.st_size.to_bytes(8, "big"), digest_size=16)
    filled = 0
    for at in _blocks(old, info):
        block = os.pread(old, min(_BLOCK, info.st_size - at), at)
        if len(block) < min(_BLOCK, info.st_size - at):
            raise Changed("a file became shorter")
        if block == (_ZEROS if len(block) == _BLOCK else bytes(len(block))):
            continue
        digest.update(at.to_bytes(8, "big") + block if len(block) < _BLOCK else at.to_bytes(8, "big"))
        if len(block) == _BLOCK:
            digest.update(block)
        if new is not None:
            _write(new, block, at)
            filled = at + len(block)
    if new is not None and filled < info.st_size:
        os.ftruncate(new, info.st_size)
    return digest.digest()


def _write(new: int, block: bytes, at: int) -> None:
    view = memoryview(block)
    while view:
        done = os.pwrite(new, view, at)
        view, at = view[done:], at + done


def _has_holes(info: os.stat_result) -> bool:
    return info.st_blocks * 512 < info.st_size


def _blocks(number: int, info: os.stat_result) -> Iterator[int]:
    """Yield the start of each block of the open file `number` that may hold data. Blocks that lie in holes are left
    out."""
    at, holes = 0, _has_holes(info)
    while at < info.st_size:
        if holes:
            data = _seek(number, at, os.SEEK_DATA)
            if data is None or data >= info.st_size:
                return
            at = data - data % _BLOCK
        yield at
        at += _BLOCK


def _segments(number: int, info: os.stat_result) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each part of the open file `number` that is no hole."""
    if not _has_holes(info):
        yield 0, info.st_size
        return
    end = 0
    while end < info.st_size and (start := _seek(number, end, os.SEEK_DATA)) is not None and start < info.st_size:
        end = min(_seek(number, start, os.SEEK_HOLE) or info.st_size, info.st_size)
        yield start, end


def _seek(number: int, at: int, what: int) -> int | None:
    try:
        return os.lseek(number, at, what)
    except OSError as error:
        if error.errno != errno.ENXIO:  # Only a hole follows, or the file became shorter.
            raise
        return None
