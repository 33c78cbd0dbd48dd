"""Unpacks a tar into a layer: a folder tree that overlayfs stacks on the layers below.

Invariant: nothing is written outside the target folder or through a link, whatever the tar contains. Deletions become
whiteouts and opaque folders, but only where a layer below has something to delete, since unneeded ones would be visible
in boxes.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, cast

from etude.sandbox.contract import ImageError
from etude.sandbox.images.ids import IdRange
from etude.sandbox.images.owners import remove_tree
from etude.sandbox.images.stack import Stack, make_opaque, make_whiteout

FIXED_TIME = 946_684_800
"""Modification time of generated or copied files (the year 2000), fixed so that boxes are the same every time."""
_WHITEOUT, _RESERVED, _OPAQUE_MARK = ".wh.", ".wh..wh.", ".wh..wh..opq"
_CHUNK, _DEPTH, _IDS, _FAR = 1 << 20, 256, 1 << 31, 1 << 40


@dataclass(frozen=True, slots=True)
class Bounds:
    """Size limits of one layer, since a small archive can expand to any amount of data."""

    bytes: int = 64 << 30
    members: int = 4_000_000


DEFAULT_BOUNDS = Bounds()


@dataclass(slots=True)
class Unpacker:
    name: str
    """Name of the layer in error messages."""
    target: Path
    below: Stack
    ids: IdRange | None
    """The id range of the boxes' users. None: all files belong to the user who runs this process."""
    bounds: Bounds = DEFAULT_BOUNDS
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of members and attributes of each kind that are left out because boxes do not need them."""
    _folders: dict[PurePosixPath, tarfile.TarInfo | None] = field(default_factory=dict)
    """Folders made so far, with their tar members. The member is None for a parent that the tar does not contain."""
    _opaque: set[PurePosixPath] = field(default_factory=set)
    _removed: set[PurePosixPath] = field(default_factory=set)
    _bytes: int = 0
    _members: int = 0
    _parent: PurePosixPath | None = None
    """The last folder that `_require_folder` has found or made, so that further members in it need no new check."""

    def __post_init__(self) -> None:
        self.target.mkdir(mode=0o700)
        self._folders[PurePosixPath()] = None

    def add(self, info: tarfile.TarInfo, data: IO[bytes] | None) -> None:
        """Write one member of the tar. A repeated member replaces the earlier one, as in tar."""
        path = self._checked(info.name, info.name)
        self._count(info)
        if any(part.startswith(_WHITEOUT) for part in path.parts):
            self._record_removal(info.name, path)
            return
        if info.ischr() or info.isblk():
            self.skipped["device"] += 1
            return
        self._count_dropped(info)
        try:
            self._write(info, path, data)
        except OSError as error:
            if error.errno in _BAD_NAME:
                raise self._refusal(info.name, f"cannot be a file's name ({error.strerror})") from error
            raise

    def finish(self) -> None:
        """Write the layer's deletions, and set the folders' owners, modes and times. Call it after the last member."""
        replaced = {path for path in self._removed if self._is_folder(path)}
        emptied = self._opaque | replaced
        for path in sorted(self._removed - replaced):
            if not _below_any(path, emptied) and self.below.find(path).paths and self._make_folders(path.parent):
                path_on_disk = self.target / path
                if not os.path.lexists(path_on_disk):
                    make_whiteout(path_on_disk)
                    self._chown(path_on_disk, 0, 0)
        for path in sorted(emptied):
            if not _below_any(path, emptied) and self._merges(path) and self._make_folders(path):
                make_opaque(self.target / path)
        for path, info in sorted(self._folders.items(), key=lambda item: len(item[0].parts), reverse=True):
            if self._is_folder(path):
                inherits = path not in replaced and not _below_any(path, emptied) and self._merges(path)
                self._finish_folder(path, info, inherits=inherits)

    # -- one member

    def _write(self, info: tarfile.TarInfo, path: PurePosixPath, data: IO[bytes] | None) -> None:
        goal = self.target / path
        if not path.parts:
            if not info.isdir():
                raise self._refusal(info.name, "is the root itself, which must be a folder")
            self._folders[path] = info
            return
        self._require_folder(info.name, path.parent)
        if info.islnk() and self._checked(info.name, info.linkname) == path and os.path.lexists(goal):
            return  # A link to itself.
        if os.path.lexists(goal) and not (info.isdir() and self._is_folder(path)):
            self._remove(path)
        if info.isdir():
            goal.mkdir(mode=0o700, exist_ok=True)
            self._folders[path] = info
        elif info.islnk():
            self._link(info, goal)
        elif info.issym():
            if not info.linkname:
                raise self._refusal(info.name, "is a link to nothing")
            goal.symlink_to(info.linkname)
            self._set_attributes(info, goal)
        elif info.isfifo():
            os.mkfifo(goal)
            self._set_attributes(info, goal)
        elif info.isreg() and data is not None:
            with goal.open("xb") as file:
                _copy(info, data, file)
            self._set_attributes(info, goal)
        else:
            raise self._refusal(info.name, f"is of a kind ({info.type!r}) that no image needs")

    def _link(self, info: tarfile.TarInfo, goal: Path) -> None:
        """Make a hard link to an earlier file. If that file is in a layer below, copy it instead of linking to it."""
        path = self._checked(info.name, info.linkname)
        source = self.target / path
        if not all(self._is_folder(parent) or not os.path.lexists(self.target / parent) for parent in path.parents):
            raise self._refusal(info.name, f"is a hard link to {path}, which leads through a link or file")
        if os.path.lexists(source):
            if self._is_folder(path):
                raise self._refusal(info.name, f"is a hard link to the folder {path}")
            os.link(source, goal, follow_symlinks=False)
            return
        # The target is in a layer below. Layers cannot share a file, so this layer gets a copy.
        lower_paths = self.below.find(path).paths
        found = lower_paths[0].lstat() if lower_paths else None
        if found is None or not stat.S_ISREG(found.st_mode):
            raise self._refusal(info.name, f"is a hard link to {path}, which is in no layer")
        self._bytes += found.st_size
        with lower_paths[0].open("rb") as old, goal.open("xb") as new:
            while chunk := old.read(_CHUNK):
                new.write(chunk)
        _copy_attributes(found, goal, owned=self.ids is not None)

    def _remove(self, path: PurePosixPath) -> None:
        path_on_disk = self.target / path
        self._parent = None
        if self._is_folder(path):
            self._folders.pop(path, None)
            remove_tree(path_on_disk)
        else:
            path_on_disk.unlink()

    def _record_removal(self, name: str, path: PurePosixPath) -> None:
        """Record a deletion: a member named .wh.NAME deletes NAME, and .wh..wh..opq makes its folder opaque."""
        if any(part.startswith(_RESERVED) for part in path.parts[:-1]):
            return  # Reserved names hold an image builder's own data.
        if any(part.startswith(_WHITEOUT) for part in path.parts[:-1]):
            raise self._refusal(name, f"lies below a name with {_WHITEOUT}, which is for removals alone")
        if path.name == _OPAQUE_MARK:
            self._opaque.add(path.parent)
        elif not path.name.startswith(_RESERVED):
            gone = path.name.removeprefix(_WHITEOUT)
            if gone in ("", ".", ".."):
                raise self._refusal(name, "removes no name that can be")
            self._removed.add(path.with_name(gone))

    def _count_dropped(self, info: tarfile.TarInfo) -> None:
        """Count those mode bits and attributes of the member that the layer does not keep."""
        if info.mode & 0o6000 and not info.isdir():
            self.skipped["set-uid or set-gid bit"] += 1
        for key in info.pax_headers:
            if key.startswith(("SCHILY.xattr.", "LIBARCHIVE.xattr.")):
                self.skipped["capability" if key.endswith("security.capability") else "extended attribute"] += 1

    # -- folders

    def _require_folder(self, name: str, path: PurePosixPath) -> None:
        """Make `path`, the folder of the member `name`. Raises ImageError if a link or file of this layer is there."""
        if path != self._parent and not self._make_folders(path):
            raise self._refusal(name, f"would be written through {path}, which this layer does not make a folder")
        self._parent = path

    def _make_folders(self, path: PurePosixPath) -> bool:
        """Make the folder and its parents. Return False if the new layer has a link or file at one of these paths."""
        for parent in (*reversed(path.parents), path):
            path_on_disk = self.target / parent
            if not os.path.lexists(path_on_disk):
                path_on_disk.mkdir(mode=0o700)
                self._folders.setdefault(parent, None)
            elif not self._is_folder(parent):
                return False
        return True

    def _is_folder(self, path: PurePosixPath) -> bool:
        try:
            return stat.S_ISDIR((self.target / path).lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _merges(self, path: PurePosixPath) -> bool:
        """Return whether a layer below has a folder at the path."""
        lower_paths = self.below.find(path).paths
        return bool(lower_paths) and stat.S_ISDIR(lower_paths[0].lstat().st_mode)

    def _finish_folder(self, path: PurePosixPath, info: tarfile.TarInfo | None, *, inherits: bool) -> None:
        """Set a folder's attributes: those of its tar member, else (`inherits`) of the layers below, else defaults."""
        path_on_disk = self.target / path
        if info is not None:
            self._set_attributes(info, path_on_disk)
        elif inherits:
            found = self.below.find(path).paths[0].lstat()
            _copy_attributes(found, path_on_disk, owned=self.ids is not None)
        else:
            self._chown(path_on_disk, 0, 0)
            path_on_disk.chmod(0o755)
            os.utime(path_on_disk, (FIXED_TIME, FIXED_TIME))

    # -- attributes of files

    def _set_attributes(self, info: tarfile.TarInfo, path_on_disk: Path) -> None:
        count = self.ids.count if self.ids else _IDS
        if not (0 <= info.uid < count and 0 <= info.gid < count):
            found = f"belongs to user {info.uid}, group {info.gid}"
            raise self._refusal(info.name, f"{found}; boxes have ids below {count}")
        modified = self._time(info)
        self._chown(path_on_disk, info.uid, info.gid)
        if not info.issym():
            path_on_disk.chmod(self._mode(info))
        os.utime(path_on_disk, (modified, modified), follow_symlinks=False)

    def _time(self, info: tarfile.TarInfo) -> float:
        """Return the member's modification time, or raise ImageError if no file can have it."""
        if not abs(info.mtime) < _FAR:  # This also refuses what is not a number.
            raise self._refusal(info.name, f"was modified at {info.mtime}, which is no time")
        return info.mtime

    def _mode(self, info: tarfile.TarInfo) -> int:
        """Return the mode without set-uid and, for files, set-gid. In a store without an id range, folders get all
        rights for their owner, since the process that reads them is not root."""
        if not info.isdir():
            return info.mode & 0o1777
        return info.mode & 0o3777 | (0o700 if self.ids is None else 0)

    def _chown(self, path_on_disk: Path, uid: int, gid: int) -> None:
        """Give a file to this user of the box. Without an id range, it stays with the user of this process."""
        if self.ids is not None:
            os.chown(path_on_disk, self.ids.first + uid, self.ids.first + gid, follow_symlinks=False)

    # -- checks

    def _checked(self, member: str, name: str) -> PurePosixPath:
        """Return `name`, a path in the tar, relative to the root. If it leads out of the root or is too deep, raise an
        ImageError about the tar member `member`."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise self._refusal(member, f"names {name!r}; expected a path below the root, without '..'")
        if len(path.parts) > _DEPTH:
            raise self._refusal(member, f"lies {len(path.parts)} folders deep; at most {_DEPTH} are possible")
        return path

    def _count(self, info: tarfile.TarInfo) -> None:
        """Count the member and its bytes, and raise ImageError beyond the layer's limits."""
        self._members += 1
        # Holes take no disk space, but an excessive length would still harm programs that read the file.
        self._bytes += sum(size for _, size in _pieces(info))
        if self._members > self.bounds.members:
            raise self._refusal(info.name, f"is one of more than {self.bounds.members} members")
        if self._bytes > self.bounds.bytes or info.size > self.bounds.bytes:
            raise self._refusal(info.name, f"takes the layer beyond {self.bounds.bytes} bytes")

    def _refusal(self, member: str, why: str) -> ImageError:
        return ImageError(f"layer {self.name}: member {member!r} {why}")


_BAD_NAME = {errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ}


def _below_any(path: PurePosixPath, folders: set[PurePosixPath]) -> bool:
    return any(parent in folders for parent in path.parents)


def _pieces(info: tarfile.TarInfo) -> list[tuple[int, int]]:
    """Return (start, length) of those parts of the file that are not holes."""
    sparse = cast("list[tuple[int, int]] | None", info.sparse)
    return [(0, info.size)] if sparse is None else sparse


def _copy(info: tarfile.TarInfo, data: IO[bytes], file: IO[bytes]) -> None:
    # Use the unbuffered stream, because it can seek forward over the holes.
    source = data.raw if info.sparse and isinstance(data, io.BufferedReader) else data
    for start, size in _pieces(info):
        if start:
            source.seek(start)
            file.seek(start)
        while size > 0:
            chunk = source.read(min(size, _CHUNK))
            if not chunk:
                raise tarfile.ReadError("unexpected end of data")
            file.write(chunk)
            size -= len(chunk)
    if info.sparse:
        file.truncate(info.size)  # The file may end with a hole.


def _copy_attributes(found: os.stat_result, path_on_disk: Path, *, owned: bool) -> None:
    """Give a file the mode, times and, if `owned`, the owner recorded in `found`."""
    if owned:
        os.chown(path_on_disk, found.st_uid, found.st_gid)
    path_on_disk.chmod(stat.S_IMODE(found.st_mode))
    os.utime(path_on_disk, ns=(found.st_mtime_ns, found.st_mtime_ns))
