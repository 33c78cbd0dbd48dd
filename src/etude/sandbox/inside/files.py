"""Reads and writes files of a box on behalf of the owner process, which uses the box. The kernel resolves every path
beneath the box's root or workdir.

A relative path may not leave the workdir, not even through a symbolic link. An absolute path is resolved in the box's
root. Only regular files are read or written, and no call blocks on a pipe or a device.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from etude.sandbox.inside import kernel, walk

MAX_LISTED, MAX_DEPTH = 100_000, 500
MAX_NAME_BYTES = 16 << 20
"""Most bytes of all paths of one listing, so that it fits into pid 1's memory."""


OF_THE_PATH = frozenset(
    (
        errno.EBUSY, errno.EEXIST, errno.EFBIG, errno.EINVAL, errno.ELOOP, errno.EMLINK, errno.ENAMETOOLONG,
        errno.ENODEV, errno.ENOTEMPTY, errno.ENXIO, errno.EOPNOTSUPP, errno.EOVERFLOW, errno.EROFS, errno.ETXTBSY,
        errno.EXDEV,
    )
)  # fmt: skip
"""Errors that only say what a path is, or where it leads, as processes of the box have made it. A request that meets
one is refused. (Missing files, folders and permissions have exceptions of their own.)"""


class Refused(Exception):
    """A request breaks a rule of the box, for example with a path outside the workdir."""


@contextlib.contextmanager
def _base_of(workdir: str, path: str) -> Iterator[tuple[int, str, int]]:
    """Yield what openat2 needs: the folder to resolve from, the path relative to it, and the resolve flag."""
    if not _is_path(path):
        raise Refused(f"{path!r} is not a path")
    absolute = path.startswith("/")
    base = os.open("/" if absolute else workdir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield base, path.lstrip("/") or ".", kernel.RESOLVE_IN_ROOT if absolute else kernel.RESOLVE_BENEATH
    finally:
        os.close(base)


def _is_path(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path) and path != ""
    except UnicodeEncodeError:  # Half of a surrogate pair.
        return False


@contextlib.contextmanager
def opened_folder(workdir: str, path: str) -> Iterator[int]:
    with _base_of(workdir, path) as (base, rest, rule):
        number = _open(base, rest, os.O_RDONLY | os.O_DIRECTORY, rule)
    try:
        yield number
    finally:
        os.close(number)


def make_folder(workdir: str, path: str) -> None:
    with _base_of(workdir, path) as (base, rest, rule):
        _make_parents(base, f"{rest}/below", rule)


def _open(base: int, path: str, flags: int, rule: int, mode: int = 0) -> int:
    never_wait = 0 if flags & os.O_PATH else os.O_NONBLOCK | os.O_NOCTTY
    try:
        return kernel.openat2(base, path, flags | never_wait, mode, rule)
    except OSError as error:
        if isinstance(
            error, (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
        ):
            raise
        if error.errno == 18:  # EXDEV: the path led outside.
            raise Refused(f"{path} leaves the workdir") from None
        if error.errno in (40, 6):  # ELOOP: a magic link or a loop of links; ENXIO: a pipe or socket.
            raise Refused(f"{path} is not a regular file or not reached by plain links") from None
        raise


def _require_regular(number: int, path: str, proc: int) -> os.stat_result:
    """Raise if the descriptor is no regular file or lies in /proc, whose device number is `proc`."""
    info = os.fstat(number)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(21, os.strerror(21), path)
    if not stat.S_ISREG(info.st_mode) or info.st_dev == proc:
        raise Refused(f"{path} is not a regular file")
    return info


def read(workdir: str, path: str, max_bytes: int, proc: int) -> bytes:
    """Return the file's content. Refuse files of more than `max_bytes` or in /proc, whose device number is `proc`."""
    return read_with_facts(workdir, path, max_bytes, proc)[1]


def read_with_facts(workdir: str, path: str, max_bytes: int, proc: int) -> tuple[os.stat_result, bytes]:
    """Return the file's stat result and content. Refuse files of more than `max_bytes` or in /proc, whose device number
    is `proc`."""
    with _base_of(workdir, path) as (base, rest, rule):
        number = _open(base, rest, os.O_RDONLY, rule)
    # Not by open(number, "rb"), which does not close the descriptor of a folder.
    try:
        info = _require_regular(number, path, proc)
        # Read at most the file's size: the buffer for the whole request is allocated before anything is read.
        data = os.read(number, info.st_size + 1) if info.st_size <= max_bytes else b""
    finally:
        os.close(number)
    if info.st_size > max_bytes or len(data) > max_bytes:
        raise Refused(f"{path} has {max(info.st_size, len(data))} bytes; at most {max_bytes} were asked for")
    return info, data


def write(workdir: str, path: str, data: bytes, *, executable: bool, proc: int) -> None:
    """Write `data` to the file, making missing parent folders. Files in /proc, whose device number is `proc`, are
    refused."""
    with _base_of(workdir, path) as (base, rest, rule):
        _make_parents(base, rest, rule)
        # No O_TRUNC: the file is truncated only once it is known to be regular.
        number = _open(base, rest, os.O_WRONLY | os.O_CREAT, rule, 0o755 if executable else 0o644)
    with open(number, "wb", buffering=0) as file:
        info = _require_regular(number, path, proc)
        file.truncate(0)
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        if executable:
            os.fchmod(number, stat.S_IMODE(info.st_mode) | 0o755)


def _make_parents(base: int, path: str, rule: int) -> None:
    """Make the missing parents of `path`. Each is opened with `rule` before a folder is made in it, so no path leads
    outside."""
    steps = [step for step in path.split("/") if step not in ("", ".")]
    flags = os.O_PATH | os.O_DIRECTORY
    for depth in range(1, len(steps)):
        try:
            os.close(_open(base, "/".join(steps[:depth]), flags, rule))
        except FileNotFoundError:
            above = _open(base, "/".join(steps[: depth - 1]) or ".", flags, rule)
            try:
                os.mkdir(steps[depth - 1], 0o755, dir_fd=above)
            except FileExistsError:
                pass  # A dangling link has this name. Opening the file will report it.
            finally:
                os.close(above)


def walk_shallow(top: int, *, mounts: bool) -> Iterator[tuple[str, int, list[str], list[str]]]:
    """Walk a tree like `walk.walk`. Raises Refused if folders are nested more than MAX_DEPTH deep, or if a path is
    longer than `walk.LONGEST`."""
    try:
        for found in walk.walk(top, mounts=mounts):
            if found[0].count("/") >= MAX_DEPTH:
                raise Refused(f"folders are nested more than {MAX_DEPTH} deep")
            yield found
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise Refused(f"folders are nested too deep: a path has at most {walk.LONGEST} bytes") from None


def _walk(top: int) -> Iterator[tuple[str, str, int, os.stat_result]]:
    """Yield (path, name, open folder, stat result) of every entry below the open folder `top`. Other mounts (/proc,
    /dev and the host's system folders) are not entered."""
    device = os.fstat(top).st_dev
    for folder, number, names, enter in walk_shallow(top, mounts=False):
        for name in names:
            info = walk.look_at(number, name)
            if info is None:
                continue
            yield f"{folder}/{name}" if folder else name, name, number, info
            if stat.S_ISDIR(info.st_mode) and info.st_dev == device:
                enter.append(name)


def layout_below(workdir: str, path: str) -> list[str]:
    """Return one sorted record for the folder and each entry below it: path, octal mode (with the file type) and link
    target, separated by NUL."""
    with opened_folder(workdir, path) as top:
        found = [f"{path}\0{os.fstat(top).st_mode:o}\0"]
        room = MAX_NAME_BYTES
        for inside, name, number, info in _walk(top):
            target = ""
            if stat.S_ISLNK(info.st_mode):
                with contextlib.suppress(OSError):  # It was removed or replaced meanwhile.
                    target = os.readlink(name, dir_fd=number)
            found.append(f"{path}/./{inside}\0{info.st_mode:o}\0{target}")
            room -= len(found[-1])
            if len(found) > MAX_LISTED:
                raise Refused(f"more than {MAX_LISTED} names below {path}")
            if room < 0:
                raise Refused(f"more than {MAX_NAME_BYTES} bytes of names below {path}")
    return sorted(found)


def list_below(workdir: str, path: str) -> list[str]:
    """Return the sorted paths of all regular files below the folder. Other mounts are not entered."""
    found: list[str] = []
    with opened_folder(workdir, path) as top:
        room = MAX_NAME_BYTES
        for inside, _, _, info in _walk(top):
            if stat.S_ISREG(info.st_mode):
                found.append(inside)
                room -= len(inside)
            if len(found) > MAX_LISTED:
                raise Refused(f"more than {MAX_LISTED} files below {path}")
            if room < 0:
                raise Refused(f"more than {MAX_NAME_BYTES} bytes of names below {path}")
    return sorted(found)
