"""Copies what boxes have written (a stack of overlay upper folders) into one layer, and names the layer by a digest of
its content.

Deletions (whiteouts), opaque folders, links, modes, owners, times and attributes are kept, so a box on top of the copy
sees the same files as a box on top of the originals.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

# The same function as in hashlib, but without loading OpenSSL: every box's pid 1 is a copy of a process that has loaded
# this module.
from _blake2 import blake2b
from collections.abc import Iterator

from etude.sandbox.inside.removal import remove_tree
from etude.sandbox.inside.wire import Header

_OVERLAY = "user.overlay."
_OPAQUE = f"{_OVERLAY}opaque"
_COPY_BYTES = 1 << 20
LONGEST = 3000
"""Longest path of a folder in a layer, in bytes. The kernel allows 4096, and the path of the store needs some of
them."""


def copy_and_report(sources: list[str], target: str, *, named: bool = True) -> Header:
    """Merge the overlay folders `sources` (topmost first) into `target`. Return the digest for the owner process, or
    the error after removing the partial copy. Without `named`, file content is not hashed, so the digest must not name
    the copy."""
    try:
        return {"digest": copy_layers(sources, target, named=named)}
    except OSError as error:
        with contextlib.suppress(OSError):
            remove_tree(target)
        if error.errno == errno.ENAMETOOLONG:
            return {"error": f"folders are nested too deep: a path has at most {LONGEST} bytes", "kind": "refused"}
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return {"error": str(error), "kind": "disk_full" if full else "failed"}


def copy_layers(sources: list[str], target: str, *, named: bool = True) -> str:
    os.makedirs(target, exist_ok=True)
    return _Copy(target, named=named).run(sources)


class _MergedEntry:
    """One path in the merge of several overlay folders: its topmost entry and, for a folder, all folders merged in
    it."""

    __slots__ = ("entry", "folders", "opaque", "path")

    def __init__(self, path: str, entry: os.DirEntry[str]) -> None:
        self.path, self.entry = path, entry
        self.folders: list[str] = []
        self.opaque = False
        """The folder hides the same folder in all layers below the merged ones."""


def _walk(folders: list[str]) -> Iterator[_MergedEntry]:
    """Yield every path below the merge of these folders (topmost first), each folder before its content."""
    iterators = [_listed(folders, "")]
    while iterators:
        found = next(iterators[-1], None)
        if found is None:
            iterators.pop()
            continue
        yield found
        if found.folders:
            iterators.append(_listed(found.folders, f"{found.path}/"))


def _listed(folders: list[str], prefix: str) -> Iterator[_MergedEntry]:
    """Yield the merged entries of `folders` (topmost first), sorted by name. `prefix` is the merged folder's path, with
    a slash at the end; the top folder's is empty."""
    if len(os.fsencode(prefix)) > LONGEST:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), prefix)
    entries: dict[str, list[os.DirEntry[str]]] = {}
    for folder in folders:
        with os.scandir(folder) as found:
            for entry in found:
                entries.setdefault(entry.name, []).append(entry)
    for name in sorted(entries):
        item = _MergedEntry(f"{prefix}{name}", entries[name][0])
        for entry in entries[name]:
            if not entry.is_dir(follow_symlinks=False):
                item.opaque = bool(item.folders)
                break
            item.folders.append(entry.path)
            if _OPAQUE in os.listxattr(entry.path):
                item.opaque = True
                break
        yield item


class _Copy:
    def __init__(self, target: str, *, named: bool) -> None:
        self.target, self.named = target, named
        self.digest = blake2b(digest_size=16)
        self.links: dict[tuple[int, int], str] = {}
        """(device, inode) of each file with several hard links -> path of its first copy."""

    def run(self, sources: list[str]) -> str:
        folders = [(os.lstat(sources[0]), self.target)]
        for found in _walk(sources):
            info = found.entry.stat(follow_symlinks=False)
            kind, goal = stat.S_IFMT(info.st_mode), f"{self.target}/{found.path}"
            content = extra = b""
            if kind == stat.S_IFSOCK:
                continue  # A socket has no meaning without its process.
            if kind == stat.S_IFREG:
                content, extra = self._copy_file(found, info, goal)
            elif kind == stat.S_IFDIR:
                os.mkdir(goal)
                folders.append((info, goal))
                extra = _copy_attributes(found.entry.path, goal)
                if found.opaque:
                    os.setxattr(goal, _OPAQUE, b"y")
                    extra = b"y" + extra
            elif kind == stat.S_IFLNK:
                link = os.readlink(found.entry.path)
                os.symlink(link, goal)
                _copy_stat(goal, info)
                content = os.fsencode(link)
            else:
                # A whiteout is a character device 0:0; FIFOs are copied as they are.
                os.mknod(goal, info.st_mode, info.st_rdev)
                _copy_stat(goal, info)
            _add(self.digest, found.path, info, content, extra)
        # Folders last and deepest first, since writing into a folder changes its time.
        for info, goal in reversed(folders):
            _copy_stat(goal, info)
        return self.digest.hexdigest()

    def _copy_file(self, found: _MergedEntry, info: os.stat_result, goal: str) -> tuple[bytes, bytes]:
        """Return the digest of the file's content, and its extended attributes. For a further hard link, the path of
        its first copy replaces the digest."""
        if info.st_nlink > 1:
            same = (info.st_dev, info.st_ino)
            if first := self.links.get(same):
                os.link(first, goal)
                return b"=" + os.fsencode(first.removeprefix(self.target)), _copy_attributes(found.entry.path, goal)
            self.links[same] = goal
        old = os.open(found.entry.path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            new = os.open(goal, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(info.st_mode) & 0o777)
            try:
                content = _copy_and_hash(old, new) if self.named else _copy_bytes(old, new)
                _copy_stat(new, info)
                extra = _copy_attributes(old, new)
            finally:
                os.close(new)
        finally:
            os.close(old)
        return content, extra


def _copy_bytes(old: int, new: int) -> bytes:
    while os.sendfile(new, old, None, _COPY_BYTES):
        pass
    return b""


def _copy_and_hash(old: int, new: int) -> bytes:
    content = blake2b(digest_size=16)
    while chunk := os.read(old, _COPY_BYTES):
        content.update(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(new, view) :]
    return content.digest()


def _copy_stat(target: str | int, info: os.stat_result) -> None:
    """Set owner, mode and time of a path or an open file. The owner comes first, since changing it clears set-id bits
    and capabilities. What is right already is not set again, since each change costs a write to the file system's
    journal."""
    open_file = isinstance(target, int)
    made = os.fstat(target) if isinstance(target, int) else os.lstat(target)
    if (made.st_uid, made.st_gid) != (info.st_uid, info.st_gid):
        os.chown(target, info.st_uid, info.st_gid, follow_symlinks=open_file)
    if made.st_mode != info.st_mode:
        os.chmod(target, stat.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_mtime_ns, info.st_mtime_ns), follow_symlinks=open_file)


def _copy_attributes(source: str | int, target: str | int) -> bytes:
    """Copy the extended attributes that programs have set, but not those of overlayfs. Return them as bytes for the
    digest."""
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
