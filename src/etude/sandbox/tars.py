"""Tars that are written into a box or read from one. A tar is checked completely before any of it is written.

A tar may hold files, folders, symbolic links, and hard links to its own files. Every name stays below the folder that
the tar is unpacked into, no member lies below a link or a file, and the number and total size of members are limited.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

from etude.sandbox.contract import RequestRefused

MAX_ID = 65535
_KINDS = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}
_ENTRY = (str, str, int, int, int, int, int, str)
"""Types of the items of `Member.entry()`, the list in which a box sends a tar's member, in order."""
_LONGEST_NAME, _LONGEST_STEP = 4000, 255
_BROKEN = (tarfile.TarError, ValueError, OverflowError, EOFError, OSError, RecursionError)


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    kind: str
    """"file", "folder", "link" (symbolic) or "hard" (a hard link)."""
    mode: int
    uid: int = 0
    gid: int = 0
    modified: int = 0
    """Modification time, in seconds since the epoch."""
    size: int = 0
    goal: str = ""
    """Target of a symbolic link, unchanged; of a hard link, the name of the earlier file in the tar that it links
    to."""
    source: tarfile.TarInfo | None = None
    """tarfile's own object, through which the content is read."""

    def entry(self) -> list[str | int]:
        return [self.name, self.kind, self.mode, self.uid, self.gid, self.modified, self.size, self.goal]

    @classmethod
    def of_entry(cls, entry: object) -> Member:
        """Make a Member from a list that a box sent, of the form of `Member.entry()`. Raise ValueError for any other
        value."""
        if not isinstance(entry, list) or tuple(map(type, entry)) != _ENTRY:
            raise ValueError("an entry that is no member of a tar")
        member = cls(*entry)
        if member.kind not in _KINDS or member.size < 0 or (member.size and member.kind != "file"):
            raise ValueError(f"a member of kind {member.kind!r} with {member.size} bytes")
        return member


class Tar:
    """A tar that has passed all checks. The constructor raises RequestRefused, with the reason, for a bad one."""

    def __init__(self, data: bytes, *, max_bytes: int, max_files: int) -> None:
        if len(data) > max_bytes + (max_files + 2) * 4 * tarfile.RECORDSIZE:
            raise RequestRefused(f"a tar of {len(data)} bytes; at most {max_bytes} of content are allowed")
        try:
            self._archive = tarfile.open(fileobj=io.BytesIO(data), mode="r:")  # noqa: SIM115
        except _BROKEN as error:
            raise RequestRefused(f"not a tar (plain, not compressed): {error or type(error).__name__}") from None
        self.members: list[Member] = []
        self._check_members(max_bytes, max_files)

    def _check_members(self, max_bytes: int, max_files: int) -> None:
        kinds: dict[str, str] = {}
        total = 0
        for info in self._infos():
            try:
                member = _member(info)
            except (ValueError, OverflowError) as error:  # The name is not text, or the time is not a number.
                raise RequestRefused(f"a damaged tar: member {info.name!r}: {error}") from None
            if member is None:
                continue
            _require_folders_above(member.name, kinds)
            _require_same_kind(member, kinds)
            if member.kind == "hard" and kinds.get(member.goal) not in ("file", "hard"):
                raise RequestRefused(f"{member.name} is a hard link to {member.goal!r}, which is no file before it")
            kinds[member.name] = member.kind
            total += member.size
            self.members.append(member)
            if len(self.members) > max_files:
                raise RequestRefused(f"a tar of more than {max_files} members")
            if total > max_bytes:
                raise RequestRefused(f"a tar with more than {max_bytes} bytes of content, up to {member.name}")

    def _infos(self) -> Iterator[tarfile.TarInfo]:
        while True:
            try:
                info = self._archive.next()
            except _BROKEN as error:
                raise RequestRefused(f"a damaged tar: {error or type(error).__name__}") from None
            if info is None:
                return
            # Checked before the next member is read: with a negative size, tarfile would read this one again forever.
            if info.size < 0:
                raise RequestRefused(f"a damaged tar: {info.name} has {info.size} bytes")
            yield info

    def batches(self, size: int) -> Iterator[list[Member]]:
        """Yield all members in order, in batches of at most `size` bytes; a larger file is a batch of its own. Folders
        first give their owner full access, so that they can be filled; a last batch repeats them with their real
        modes."""
        batch: list[Member] = []
        room = size
        for member in self.members:
            if batch and member.size > room:
                yield batch
                batch, room = [], size
            room -= member.size
            is_folder = member.kind == "folder"
            batch.append(replace(member, mode=member.mode | 0o700) if is_folder else member)
        yield batch
        yield [member for member in reversed(self.members) if member.kind == "folder"]

    def contents(self, batch: list[Member]) -> bytes:
        """Return the contents of a batch's files, joined in order."""
        return b"".join(self._content(member) for member in batch if member.kind == "file")

    def _content(self, member: Member) -> bytes:
        assert member.source is not None
        try:
            file = self._archive.extractfile(member.source)
            data = file.read(member.size + 1) if file else b""
        except _BROKEN as error:
            raise RequestRefused(f"a damaged tar: {member.name}: {error or type(error).__name__}") from None
        if len(data) != member.size:
            raise RequestRefused(f"a damaged tar: {member.name} has {len(data)} bytes, not {member.size}")
        return data


def _member(info: tarfile.TarInfo) -> Member | None:
    """Check one entry of a tar and return it as a Member. Return None for the packed folder itself (".")."""
    name = _name(info.name)
    if name is None:
        return None
    for kind, number in (("user", info.uid), ("group", info.gid)):
        if not 0 <= number <= MAX_ID:
            raise RequestRefused(f"{name} belongs to {kind} {number}; ids go from 0 to {MAX_ID}")
    facts = (info.mode & 0o7777, info.uid, info.gid, max(0, min(int(info.mtime), 2**40)))
    if info.sparse is not None:
        # A few bytes of such a member stand for any number of zeros.
        raise RequestRefused(f"{name} is a sparse file; only files with all their bytes can be written")
    if info.isreg():
        return Member(name, "file", *facts, size=info.size, source=info)
    if info.isdir():
        return Member(name, "folder", *facts)
    if info.issym():
        if not 0 < len(os.fsencode(info.linkname)) <= _LONGEST_NAME or "\0" in info.linkname:
            raise RequestRefused(f"{name} is a link to nothing, or too long")
        return Member(name, "link", *facts, goal=info.linkname)
    if info.islnk():
        return Member(name, "hard", *facts, goal=_name(info.linkname) or "")
    raise RequestRefused(f"{name} is a device or pipe; only files, folders and links can be written")


def _name(name: str) -> str | None:
    """Return the name without "." and doubled slashes; None for the packed folder itself ("."). Raise RequestRefused if
    it leads outside."""
    if name.startswith("/") or "\0" in name:
        raise RequestRefused(f"member {name!r}: expected a path relative to the folder")
    steps = [step for step in name.split("/") if step not in ("", ".")]
    if ".." in steps:
        raise RequestRefused(f"member {name!r} leaves the folder")
    if any(len(os.fsencode(step)) > _LONGEST_STEP for step in steps) or len(os.fsencode(name)) > _LONGEST_NAME:
        raise RequestRefused(f"member {name[:80]!r}...: the name is too long")
    return "/".join(steps) or None


def _require_folders_above(name: str, kinds: dict[str, str]) -> None:
    """Raise RequestRefused if an earlier member makes a parent of `name` a file or a link."""
    above = name.rpartition("/")[0]
    while above:
        if kinds.get(above, "folder") != "folder":
            raise RequestRefused(f"member {name!r} lies below {above!r}, which the tar makes a {kinds[above]}")
        # Remember the parent as a folder, so that no later member can make it a link or a file.
        kinds[above] = "folder"
        above = above.rpartition("/")[0]


def _require_same_kind(member: Member, kinds: dict[str, str]) -> None:
    before = kinds.get(member.name, member.kind)
    if (before == "folder") != (member.kind == "folder"):
        raise RequestRefused(f"member {member.name!r} is a {member.kind}, but was a {before} before")


def pack(members: list[Member], contents: bytes | bytearray) -> bytes:
    """Make a tar of these members. `contents` holds the contents of all files, joined in order. Raise ValueError if it
    has another size than the members, or a member cannot be in a tar."""
    if sum(member.size for member in members) != len(contents):
        raise ValueError(f"{len(contents)} bytes of content for members of another size")
    target, view = io.BytesIO(), memoryview(contents)
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.linkname, info.size = _KINDS[member.kind], member.goal, member.size
            info.mode, info.uid, info.gid, info.mtime = member.mode, member.uid, member.gid, member.modified
            archive.addfile(info, io.BytesIO(view[: member.size]))
            view = view[member.size :]
    return target.getvalue()
