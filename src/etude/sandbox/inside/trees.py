"""Reads and writes folder trees of a box, as a list of entries and the bytes of all files in the same order.

The owner process converts tars to and from this form and has checked names and sizes (etude.sandbox.tars). This module
checks what can only be checked inside the box: no path leads through a link. It checks the whole tree before writing,
and each path again when it is written, since processes in the box may change files in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from etude.sandbox.inside import files, kernel, walk
from etude.sandbox.inside.files import Refused

Entry = list[str | int]
"""[name, kind, mode, uid, gid, modified (seconds), size of a file, target of a link]. The target of a hard link is the
name of an earlier file."""
FILE, FOLDER, LINK, HARD = "file", "folder", "link", "hard"
_NAME, _KIND, _MODE, _UID, _GID, _TIME, _SIZE, _GOAL = range(8)
_KEPT_MODE_BITS = 0o1777
"""Mode bits that are read and written: all but set-user-id and set-group-id, which have no effect in a box."""
_RESOLVE = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS
_FOLDER = os.O_PATH | os.O_DIRECTORY
_MAX_NAME_BYTES = 4 << 20
"""Most bytes of all names and link targets of one tree, so that its entries fit into pid 1's memory."""


def read(workdir: str, path: str, max_bytes: int, max_files: int, proc: int) -> tuple[list[Entry], bytes | bytearray]:
    """Return the entries at `path` and the bytes of all files. A folder's first entry is the folder itself, as ".".
    /proc, whose device number is `proc`, is not entered."""
    try:
        with files.opened_folder(workdir, path) as top:
            return _read_below(top, path, max_bytes, max_files, proc)
    except NotADirectoryError:
        info, data = files.read_with_facts(workdir, path, max_bytes, proc)
        return [_entry(path.rpartition("/")[2], FILE, info, size=len(data))], data


def _read_below(top: int, path: str, max_bytes: int, max_files: int, proc: int) -> tuple[list[Entry], bytearray]:
    entries = [_entry(".", FOLDER, os.fstat(top))]
    room = _MAX_NAME_BYTES
    contents = bytearray()
    seen: dict[tuple[int, int], str] = {}
    for name, folder, info in _walk(top, proc):
        if len(entries) > max_files:
            raise Refused(f"more than {max_files} files below {path}")
        last = name.rpartition("/")[2]
        if stat.S_ISDIR(info.st_mode):
            entry = _entry(name, FOLDER, info)
        elif stat.S_ISLNK(info.st_mode):
            entry = _entry(name, LINK, info, goal=_target(folder, last, name))
        elif info.st_nlink > 1 and (info.st_dev, info.st_ino) in seen:
            entry = _entry(name, HARD, info, goal=seen[info.st_dev, info.st_ino])
        else:
            seen[info.st_dev, info.st_ino] = name
            data = _content(folder, last, name, max_bytes - len(contents))
            if data is None:
                raise Refused(f"more than {max_bytes} bytes below {path}")
            entry = _entry(name, FILE, info, size=len(data))
            contents += data
        entries.append(entry)
        room -= len(name) + len(str(entry[_GOAL]))
        if room < 0:
            raise Refused(f"more than {_MAX_NAME_BYTES} bytes of names below {path}")
    return entries, contents


def _entry(name: str, kind: str, info: os.stat_result, size: int = 0, goal: str = "") -> Entry:
    return [name, kind, info.st_mode & _KEPT_MODE_BITS, info.st_uid, info.st_gid, int(info.st_mtime), size, goal]


def _walk(top: int, proc: int) -> Iterator[tuple[str, int, os.stat_result]]:
    """Yield (name, open parent folder, stat result) of the files, folders and links below `top`. All other kinds are
    skipped, as are /proc and the box's /dev."""
    for folder, number, names, enter in files.walk_shallow(top, mounts=True):
        for name in names:
            info = walk.look_at(number, name)
            if info is None:
                continue
            if stat.S_ISDIR(info.st_mode):
                if info.st_dev == proc or (not folder and name == "dev" and _is_root(top)):
                    continue
                enter.append(name)
            elif not stat.S_ISREG(info.st_mode) and not stat.S_ISLNK(info.st_mode):
                continue
            yield f"{folder}/{name}" if folder else name, number, info


def _is_root(folder: int) -> bool:
    return os.path.samestat(os.fstat(folder), os.stat("/"))


def _target(folder: int, name: str, path: str) -> str:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
        raise Refused(f"{path} was replaced while the tree was read") from None


def _content(folder: int, name: str, path: str, room: int) -> bytes | None:
    """Return a file's content, or None if it has more than `room` bytes."""
    try:
        number = walk.open_file(folder, name)
    except OSError as error:
        if error.errno not in walk.ELSEWHERE | {errno.ENXIO}:
            raise
        raise Refused(f"{path} was replaced while the tree was read") from None
    try:
        info = os.fstat(number)
        if not stat.S_ISREG(info.st_mode):
            raise Refused(f"{path} was replaced while the tree was read")
        # At most the file's size is read: the buffer for the whole request is allocated before anything is read.
        data = os.read(number, info.st_size + 1) if info.st_size <= room else b""
        return data if info.st_size <= room and len(data) <= room else None
    finally:
        os.close(number)


# -- writing


def check(workdir: str, path: str, entries: list[Entry]) -> None:
    """Raise Refused or OSError if an entry cannot be written below `path`. Makes the folder `path`, and changes nothing
    else."""
    files.make_folder(workdir, path)
    good: set[str] = set()
    with files.opened_folder(workdir, path) as top:
        for entry in entries:
            name = str(entry[_NAME])
            parent = name.rpartition("/")[0]
            if parent and parent not in good:
                _require_folder(top, parent, name)
                good.add(parent)
            if entry[_KIND] == FOLDER:
                _require_folder(top, name, name)
            elif _is_folder(top, name):
                raise Refused(f"{name} is a folder already; the tree has a file or link there")


def _require_folder(top: int, folder: str, name: str) -> None:
    """Raise Refused if the path leads through a link or is not a folder. A missing path is accepted. `name` is the
    entry that the error names."""
    try:
        os.close(kernel.openat2(top, folder, _FOLDER, 0, _RESOLVE))
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno in (18, 20, 40):  # EXDEV, ENOTDIR, ELOOP
            raise Refused(f"{name} would be written through a link or a file, at {folder}") from None
        raise


def _is_folder(top: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def write(workdir: str, path: str, entries: list[Entry], contents: bytes, *, owners: bool) -> None:
    """Write the entries below the folder `path`, in order. Files and links replace existing ones of the same name;
    folders are merged. With `owners`, set the entries' owners too."""
    view = memoryview(contents)
    with files.opened_folder(workdir, path) as top:
        for entry in entries:
            parent, _, last = str(entry[_NAME]).rpartition("/")
            folder = _enter(top, parent)
            try:
                if entry[_KIND] == FOLDER:
                    _write_folder(folder, last, entry, owners=owners)
                else:
                    size = int(entry[_SIZE])
                    _write_other(top, folder, last, entry, view[:size], owners=owners)
                    view = view[size:]
            finally:
                os.close(folder)


def _enter(top: int, parent: str) -> int:
    """Open the folder `parent` below `top`, making its missing parts. Each part is opened by itself, never through a
    link."""
    folder = kernel.openat2(top, ".", _FOLDER, 0, _RESOLVE)
    for step in parent.split("/") if parent else ():
        try:
            below = _step(folder, step)
        except FileNotFoundError:
            os.mkdir(step, 0o755, dir_fd=folder)
            below = _step(folder, step)
        finally:
            os.close(folder)
        folder = below
    return folder


def _step(folder: int, name: str) -> int:
    try:
        return kernel.openat2(folder, name, _FOLDER, 0, _RESOLVE)
    except OSError as error:
        if error.errno in (18, 20, 40):
            raise Refused(f"{name} has become a link or a file while the tree was written") from None
        raise


def _write_folder(folder: int, name: str, entry: Entry, *, owners: bool) -> None:
    """Make the folder `name` in the open folder `folder`, or keep it if it exists, and set its attributes. An existing
    folder of another user keeps its own attributes."""
    ours = True
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        ours = False
    try:
        number = kernel.openat2(folder, name, os.O_RDONLY | os.O_DIRECTORY, 0, _RESOLVE)
        try:
            _set_attributes(number, entry, owners=owners)
        finally:
            os.close(number)
    except PermissionError:
        if ours:  # An existing folder of another user keeps its attributes.
            raise


def _set_attributes(number: int, entry: Entry, *, owners: bool) -> None:
    if owners:
        os.fchown(number, int(entry[_UID]), int(entry[_GID]))
    os.fchmod(number, int(entry[_MODE]) & _KEPT_MODE_BITS)
    os.utime(number, (int(entry[_TIME]), int(entry[_TIME])))


def _write_other(top: int, folder: int, name: str, entry: Entry, data: memoryview, *, owners: bool) -> None:
    """Write a file or link, replacing an existing file or link of the same name."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        raise Refused(f"{entry[_NAME]} is a folder; the tree has a file or link there") from None
    if entry[_KIND] == HARD:
        source, _, last = str(entry[_GOAL]).rpartition("/")
        other = _enter(top, source)
        try:
            os.link(last, name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(other)
        return
    if entry[_KIND] == LINK:
        os.symlink(str(entry[_GOAL]), name, dir_fd=folder)
        if owners:
            os.chown(name, int(entry[_UID]), int(entry[_GID]), dir_fd=folder, follow_symlinks=False)
        os.utime(name, (int(entry[_TIME]), int(entry[_TIME])), dir_fd=folder, follow_symlinks=False)
        return
    number = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        while data:
            data = data[os.write(number, data) :]
        _set_attributes(number, entry, owners=owners)
    finally:
        os.close(number)
