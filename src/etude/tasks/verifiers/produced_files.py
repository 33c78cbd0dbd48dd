"""Reads files and folders that the code under test may have made.

Whatever such code does to a path (no file, a folder or pipe, a link to anywhere, a name that is too long, modes that
forbid reading, more bytes than asked for) is its own doing, so all of it means the same: there is no such file. Only a
failure of the sandbox itself raises SandboxError.
"""

from __future__ import annotations

from etude.sandbox.contract import Box, RequestRefused

_NOTHING_THERE = (RequestRefused, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


async def read_produced(box: Box, path: str, max_bytes: int) -> bytes | None:
    """Return a file's contents, or None if the box has no plain, readable file of at most `max_bytes` there."""
    try:
        return await box.read_file(path, max_bytes=max_bytes)
    except _NOTHING_THERE:
        return None


async def list_produced(box: Box, folder: str) -> list[str] | None:
    """Return the files below a folder, or None if the box has no readable folder there, or one with too many files."""
    try:
        return await box.list_files(folder)
    except _NOTHING_THERE:
        return None


async def read_produced_tree(box: Box, path: str, max_bytes: int) -> bytes | None:
    """Return a tar of a folder or file, or None if it is missing, cannot be read whole, or exceeds `max_bytes`."""
    try:
        return await box.read_tree(path, max_bytes=max_bytes)
    except _NOTHING_THERE:
        return None
