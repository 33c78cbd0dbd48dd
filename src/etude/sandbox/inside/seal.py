"""Copies what boxes have written (a stack of overlay upper folders) into one layer, and names the layer by a digest of
its content.

Deletions (whiteouts), opaque folders, links, modes, owners, times and attributes are kept, so a box on top of the copy
sees the same files as a box on top of the originals.

Invariant: neither the sources nor the target are walked by path (walk.py). What an entry is, is decided once. If
something else is found when it is opened, the copy ends with `Changed`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

# See content.py.
from _blake2 import blake2b
from collections.abc import Callable, Iterator

from etude.sandbox.inside import content, walk
from etude.sandbox.inside.content import Changed
from etude.sandbox.inside.removal import remove_tree
from etude.sandbox.inside.walk import LONGEST
from etude.sandbox.inside.wire import Header

_OVERLAY = "user.overlay."
_OPAQUE = f"{_OVERLAY}opaque"
_SMALL_ATTRIBUTES = 2048
"""A file's extended attributes of at most this many bytes fit into every file system."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Refused(Exception):
    """The files cannot be copied, because of what a process has made of them. `deletion`: whether the reason is a
    whiteout, which deletes a file of a layer below."""

    def __init__(self, text: str, *, deletion: bool = False) -> None:
        super().__init__(text)
        self.deletion = deletion


def copy_and_report(
    sources: list[str], target: str, *, named: bool = True, prepare: Callable[[], None] = lambda: None
) -> Header:
    """Merge the overlay folders `sources` (topmost first) into `target`, after calling `prepare`. Return the digest for
    the owner process, or the error after removing the partial copy. Without `named`, file content is not hashed, so the
    digest must not name the copy."""
    try:
        prepare()
        return {"digest": copy_layers(sources, target, named=named)}
    except Changed as error:
        answer = {"error": f"a process changes its files: {error}", "kind": "busy"}
    except Refused as error:
        answer = {"error": str(error), "kind": "refused"}
    except OSError as error:
        answer = {"error": str(error), "kind": "disk_full" if error.errno in _NO_ROOM else "failed"}
    with contextlib.suppress(OSError):
        remove_tree(target)
    return answer


def copy_layers(sources: list[str], target: str, *, named: bool = True, deletions: bool = True) -> str:
    """Merge the overlay folders `sources` (topmost first) into `target`, and return a digest of the result. Without
    `named`, the contents of files are not part of the digest. Without `deletions`, a whiteout is refused. Raises
    Changed, Refused or OSError."""
    os.makedirs(target, exist_ok=True)
    with contextlib.ExitStack() as opened:
        tops = [_held(opened, walk.open_top(source)) for source in sources]
        goal = _held(opened, walk.open_top(target))
        opened.callback(os.umask, os.umask(0))
        return _Copy(tops, goal, named=named, deletions=deletions).run()


def _held(opened: contextlib.ExitStack, number: int) -> int:
    opened.callback(os.close, number)
    return number


class _Folder:
    """A folder to copy: the merge of folders of one path in several sources."""

    __slots__ = ("covers", "info", "layers", "path")

    def __init__(self, path: str, info: os.stat_result, layers: list[int], *, covers: bool) -> None:
        if len(os.fsencode(path)) >= LONGEST:
            raise Refused(f"folders are nested too deep: a path has at most {LONGEST} bytes")
        self.path, self.info = path, info
        self.layers, self.covers = layers, covers
        """`layers`: numbers of the sources that have this folder, topmost first. `covers`: whether the next source
        below has something else than a folder at this path. This folder then hides everything below."""


class _Copy:
    def __init__(self, tops: list[int], target: int, *, named: bool, deletions: bool) -> None:
        self.tops, self.target, self.named, self.deletions = tops, target, named, deletions
        self.digest = blake2b(digest_size=16)
        self.links: dict[tuple[int, int], tuple[str, bytes]] = {}
        """(device, inode) of each file with several hard links -> path of its first copy, and its attributes."""

    def run(self) -> str:
        done: list[tuple[str, os.stat_result]] = []
        todo = [_Folder("", os.fstat(self.tops[0]), list(range(len(self.tops))), covers=False)]
        while todo:
            folder = todo.pop()
            todo += reversed(self._copy_folder(folder))
            done.append((folder.path, folder.info))
        # Folders last and deepest first, since writing into a folder changes its time.
        for path, info in reversed(done):
            goal = walk.open_below(self.target, path)
            try:
                _copy_stat(goal, info)
            finally:
                os.close(goal)
        return self.digest.hexdigest()

    def _copy_folder(self, folder: _Folder) -> list[_Folder]:
        """Copy a folder's extended attributes, and all its entries except folders. Its subfolders are only made, still
        empty, and returned."""
        with contextlib.ExitStack() as opened:
            goal = _held(opened, walk.open_below(self.target, folder.path))
            layers: dict[int, int] = {}
            opaque = folder.covers
            for layer in folder.layers:
                with _unchanged(folder.path):
                    layers[layer] = _held(opened, walk.open_below(self.tops[layer], folder.path))
                if folder.path and _OPAQUE in os.listxattr(layers[layer]):
                    opaque = True
                    break
            first = layers[folder.layers[0]]
            _require_same(first, folder.info, folder.path)
            if folder.path:
                extra = _copy_attributes(first, goal, folder.path)
                if opaque:
                    os.setxattr(goal, _OPAQUE, b"y")
                    extra = b"y" + extra
                self._add(folder.path, folder.info, b"", extra)
            return self._copy_entries(f"{folder.path}/" if folder.path else "", layers, goal)

    def _copy_entries(self, prefix: str, layers: dict[int, int], goal: int) -> list[_Folder]:
        """Copy the entries of one folder, merged from several sources, into the open folder `goal`. Subfolders are only
        made, still empty, and returned. `layers` maps the number of each source, topmost first, to its open folder."""
        holders: dict[str, list[int]] = {}
        for layer, number in layers.items():
            for name in os.listdir(number):
                holders.setdefault(name, []).append(layer)
        folders = []
        for name in sorted(holders):
            path, source = f"{prefix}{name}", layers[holders[name][0]]
            info = _look_at(source, name, path)
            if stat.S_ISDIR(info.st_mode):
                os.mkdir(name, 0o700, dir_fd=goal)
                merged = [holders[name][0]]
                covers = False
                for layer in holders[name][1:]:
                    if covers := not stat.S_ISDIR(_look_at(layers[layer], name, path).st_mode):
                        break
                    merged.append(layer)
                folders.append(_Folder(path, info, merged, covers=covers))
            else:
                self._copy_entry(source, name, path, info, goal)
        return folders

    def _copy_entry(self, source: int, name: str, path: str, info: os.stat_result, goal: int) -> None:
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFREG:
            self._add(path, info, *self._copy_file(source, name, path, info, goal))
            return
        text = b""
        if kind == stat.S_IFSOCK:
            return  # A socket has no meaning without its process.
        if kind == stat.S_IFLNK:
            with _unchanged(path):
                link = os.readlink(name, dir_fd=source)
            os.symlink(link, name, dir_fd=goal)
            text = os.fsencode(link)
        elif kind == stat.S_IFIFO or (_is_whiteout(info) and self.deletions):
            os.mknod(name, info.st_mode, dir_fd=goal)
        else:
            deletion = _is_whiteout(info)
            raise Refused(f"{path} is {'a deletion' if deletion else 'a device'}", deletion=deletion)
        made = os.stat(name, dir_fd=goal, follow_symlinks=False)
        if (made.st_uid, made.st_gid) != (info.st_uid, info.st_gid):
            os.chown(name, info.st_uid, info.st_gid, dir_fd=goal, follow_symlinks=False)
        os.utime(name, ns=(info.st_mtime_ns, info.st_mtime_ns), dir_fd=goal, follow_symlinks=False)
        self._add(path, info, text, b"")

    def _copy_file(self, source: int, name: str, path: str, info: os.stat_result, goal: int) -> tuple[bytes, bytes]:
        """Return the digest of the file's content, and its extended attributes. For a further hard link, the path of
        its first copy replaces the digest."""
        same = (info.st_dev, info.st_ino) if info.st_nlink > 1 else None
        if same in self.links and self._link(self.links[same][0], name, goal):
            first, extra = self.links[same]
            return b"=/" + os.fsencode(first), extra
        text = b""
        with _unchanged(path):
            old = walk.open_file(source, name)
        try:
            _require_same(old, info, path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            new = os.open(name, flags, stat.S_IMODE(info.st_mode) & 0o777, dir_fd=goal)
            try:
                if self.named:
                    text = content.digest_of(old, info, new)
                else:
                    content.copy(old, new, info)
                _copy_stat(new, info)
                extra = _copy_attributes(old, new, path)
            finally:
                os.close(new)
        finally:
            os.close(old)
        if same:
            self.links[same] = path, extra
        return text, extra

    def _link(self, first: str, name: str, goal: int) -> bool:
        """Link an entry of the open folder `goal` to the copy `first`. Return False if that has as many links as its
        file system allows."""
        folder, _, last = first.rpartition("/")
        above = walk.open_below(self.target, folder)
        try:
            os.link(last, name, src_dir_fd=above, dst_dir_fd=goal, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            return False
        finally:
            os.close(above)
        return True

    def _add(self, path: str, info: os.stat_result, text: bytes, extra: bytes) -> None:
        """Add an entry to the digest: its path, mode, owner and device number, then `text` (digest of the content, or
        target of a link) and `extra` (its extended attributes)."""
        record = f"{path}\0{info.st_mode:o}\0{info.st_uid}\0{info.st_gid}\0{info.st_rdev}\0".encode(
            "utf-8", "surrogateescape"
        )
        for part in (record, text, extra):
            self.digest.update(len(part).to_bytes(8, "big") + part)


@contextlib.contextmanager
def _unchanged(path: str) -> Iterator[None]:
    """Convert errors in this block to Changed if they show that the source's entry at `path` is no longer what it was
    when it was listed."""
    try:
        yield
    except OSError as error:
        if error.errno not in walk.ELSEWHERE | {errno.EINVAL, errno.ENXIO}:
            raise
        raise Changed(path) from error


def _look_at(folder: int, name: str, path: str) -> os.stat_result:
    with _unchanged(path):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _require_same(number: int, info: os.stat_result, path: str) -> None:
    if not walk.same_entry(os.fstat(number), info):
        raise Changed(path)


def _is_whiteout(info: os.stat_result) -> bool:
    """Return whether an entry is a whiteout, with which overlayfs marks a deleted file: a character device 0:0."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _copy_stat(number: int, info: os.stat_result) -> None:
    """Set owner, mode and time of an open file. The owner comes first, since changing it clears set-id bits and
    capabilities. What is right already is not set again, since each change costs a write to the file system's
    journal."""
    made = os.fstat(number)
    if (made.st_uid, made.st_gid) != (info.st_uid, info.st_gid):
        os.fchown(number, info.st_uid, info.st_gid)
    if made.st_mode != info.st_mode:
        os.fchmod(number, stat.S_IMODE(info.st_mode))
    os.utime(number, ns=(info.st_mtime_ns, info.st_mtime_ns))


def _copy_attributes(source: int, target: int, path: str) -> bytes:
    """Copy the extended attributes that programs have set, but not those of overlayfs. Return them as bytes for the
    digest."""
    kept = b""
    for name in sorted(os.listxattr(source)):
        if name.startswith(("user.", "security.capability")) and not name.startswith(_OVERLAY):
            value = os.getxattr(source, name)
            kept += os.fsencode(name) + b"=" + value + b"\0"
            try:
                os.setxattr(target, name, value)
            except OSError as error:
                if error.errno not in (*_NO_ROOM, errno.E2BIG) or len(kept) <= _SMALL_ATTRIBUTES:
                    raise
                raise Refused(
                    f"{path} has {len(kept)} bytes of extended attributes or more, too many to store"
                ) from error
    return kept
