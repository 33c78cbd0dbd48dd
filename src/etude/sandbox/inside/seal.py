"""Copies what boxes wrote (uppers of overlays, one on top of the other) into one layer, and names it by its content.

Deletions (whiteouts), opaque folders, links, modes, owners, times and attributes are kept: a box on the copy sees the
same files as one on the originals.
"""

# Plain strings and descriptors instead of Path: this runs for every fork that has to copy.
# ruff: noqa: PTH101, PTH102, PTH103, PTH115, PTH123, PTH211

from __future__ import annotations

import contextlib
import errno
import os
import stat

# The same as hashlib's, without OpenSSL: every box's pid 1 is a copy of a process that has loaded this.
from _blake2 import blake2b
from collections.abc import Iterator

from etude.sandbox.inside.removal import remove_tree
from etude.sandbox.inside.wire import Header

_OVERLAY = "user.overlay."
_OPAQUE = f"{_OVERLAY}opaque"
_COPY_BYTES = 1 << 20


def attempt(sources: list[str], target: str) -> Header:
    """Copies and answers in JSON: the digest, or what went wrong (the half-made copy is removed)."""
    try:
        return {"digest": copy_layers(sources, target)}
    except OSError as error:
        _remove(target)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return {"error": str(error), "kind": "disk_full" if full else "failed"}
    except RecursionError:
        _remove(target)
        return {"error": "its folders are nested too deep", "kind": "failed"}


def _remove(target: str) -> None:
    with contextlib.suppress(OSError):
        remove_tree(target)


def copy_layers(sources: list[str], target: str) -> str:
    """Into `target`, which is made if absent, the sum of the sources, the top first. Returns its digest."""
    os.makedirs(target, exist_ok=True)
    return _Copy(target).run(sources)


class _Found:
    """One name of the sum: its top entry, and for a folder all of those that show through."""

    __slots__ = ("entry", "folders", "opaque", "path")

    def __init__(self, path: str, entry: os.DirEntry[str]) -> None:
        self.path, self.entry = path, entry
        self.folders: list[str] = []
        self.opaque = False
        """Whether it hides what lies below all sources."""


def _walk(folders: list[str], prefix: str) -> Iterator[_Found]:
    entries: dict[str, list[os.DirEntry[str]]] = {}
    for folder in folders:
        with os.scandir(folder) as found:
            for entry in found:
                entries.setdefault(entry.name, []).append(entry)
    for name in sorted(entries):
        item = _Found(f"{prefix}{name}", entries[name][0])
        for entry in entries[name]:
            if not entry.is_dir(follow_symlinks=False):
                item.opaque = bool(item.folders)
                break
            item.folders.append(entry.path)
            if _OPAQUE in os.listxattr(entry.path):
                item.opaque = True
                break
        yield item
        if item.folders:
            yield from _walk(item.folders, f"{item.path}/")


class _Copy:
    def __init__(self, target: str) -> None:
        self.target = target
        self.digest = blake2b(digest_size=16)
        self.links: dict[tuple[int, int], str] = {}
        """First copies of files with several names."""

    def run(self, sources: list[str]) -> str:
        folders = [(os.lstat(sources[0]), self.target)]
        for found in _walk(sources, ""):
            info = found.entry.stat(follow_symlinks=False)
            goal = f"{self.target}/{found.path}"
            if stat.S_ISSOCK(info.st_mode):
                continue  # It has no meaning without its process.
            content = self._make(found, info, goal)
            if stat.S_ISDIR(info.st_mode):
                folders.append((info, goal))
            else:
                _keep_attributes(goal, info)
            extra = _copy_attributes(found.entry.path, goal, info)
            if found.opaque:
                os.setxattr(goal, _OPAQUE, b"y")
                extra = b"y" + extra
            _add(self.digest, found.path, info, content, extra)
        # Folders last and deepest first: writing into one changes its time.
        for info, goal in reversed(folders):
            _keep_attributes(goal, info)
        return self.digest.hexdigest()

    def _make(self, found: _Found, info: os.stat_result, goal: str) -> bytes:
        """Returns what the digest must know of the content."""
        kind, same = stat.S_IFMT(info.st_mode), (info.st_dev, info.st_ino)
        if kind == stat.S_IFDIR:
            os.mkdir(goal)
            return b""
        if info.st_nlink > 1 and kind == stat.S_IFREG:
            if first := self.links.get(same):
                os.link(first, goal)
                return b"=" + os.fsencode(first.removeprefix(self.target))
            self.links[same] = goal
        if kind == stat.S_IFREG:
            return _copy_file(found.entry.path, goal)
        if kind == stat.S_IFLNK:
            link = os.readlink(found.entry.path)
            os.symlink(link, goal)
            return os.fsencode(link)
        os.mknod(goal, info.st_mode, info.st_rdev)  # A whiteout is a character device 0:0; fifos are copied.
        return b""


def _copy_file(source: str, target: str) -> bytes:
    content = blake2b(digest_size=16)
    unlinked = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    with open(unlinked, "rb") as old, open(target, "xb") as new:
        while chunk := old.read(_COPY_BYTES):
            content.update(chunk)
            new.write(chunk)
    return content.digest()


def _keep_attributes(path: str, info: os.stat_result) -> None:
    os.chown(path, info.st_uid, info.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(path, stat.S_IMODE(info.st_mode))
    os.utime(path, ns=(info.st_mtime_ns, info.st_mtime_ns), follow_symlinks=False)


def _copy_attributes(source: str, target: str, info: os.stat_result) -> bytes:
    """The extended attributes that programs have set, not overlayfs's own."""
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        return b""
    kept = b""
    for name in sorted(os.listxattr(source)):
        if name.startswith(("user.", "security.capability")) and not name.startswith(_OVERLAY):
            value = os.getxattr(source, name)
            os.setxattr(target, name, value)
            kept += os.fsencode(name) + b"=" + value + b"\0"
    return kept


def _add(digest: blake2b, path: str, info: os.stat_result, content: bytes, extra: bytes) -> None:
    record = f"{path}\0{info.st_mode:o}\0{info.st_uid}\0{info.st_gid}\0{info.st_rdev}\0".encode(
        "utf-8", "surrogateescape"
    )
    for part in (record, content, extra):
        digest.update(len(part).to_bytes(8, "big") + part)
