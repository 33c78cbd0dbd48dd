"""The files, folders and links that a COPY copies, as tar members, no matter where they come from.

A digest identifies what is copied: it covers names, kinds, modes, owners and bytes, but not times, which change
although the content is the same. Files are checked against their digest when they are packed.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import IO

from etude.sandbox.images.layers import FIXED_TIME

MAX_FILE = 900 << 20
"""Maximum bytes of one file, which is written to a box in one piece."""
_CHUNK = 1 << 20
_KIND = {tarfile.REGTYPE: "file", tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "name"}


@dataclass(slots=True)
class Member:
    path: str
    """Path of the member relative to the COPY source that it belongs to. Empty if the member is the source itself."""
    kind: bytes
    """The member's type, as in `tarfile.TarInfo.type`."""
    mode: int
    uid: int = 0
    gid: int = 0
    goal: str = ""
    """Target of a symbolic link, unchanged. For a hard link: path of its file, relative to the COPY source."""
    size: int = 0
    open: Callable[[], IO[bytes]] | None = None
    """Opens the content of a file or hard link. A hard link may have to be copied as a regular file."""
    digest: bytes = b""
    """Digest of a regular file's content. Empty until the method `facts` has computed it."""

    def facts(self) -> bytes:
        """Return the bytes that represent this member in the digest of its source."""
        if self.kind == tarfile.REGTYPE and self.open and not self.digest:
            self.digest = hash_of(self.open())
        text = f"{self.path}\0{_KIND[self.kind]}\0{self.mode:o}\0{self.uid}\0{self.gid}\0{self.goal}\0"
        return text.encode("utf-8", "surrogateescape") + self.digest


@dataclass(slots=True)
class Source:
    name: str
    members: list[Member]
    """The files, folders and links of this COPY source. A folder comes before its content."""
    owned: bool = False
    """Whether the members of this COPY source have owners of their own. Otherwise the COPY sets the owner."""

    @property
    def has_top(self) -> bool:
        """Whether the members include the source itself, not only a folder's content."""
        return bool(self.members) and not self.members[0].path

    @property
    def is_folder(self) -> bool:
        return not self.has_top or self.members[0].kind == tarfile.DIRTYPE

    def digest(self) -> str:
        digest = hashlib.blake2b(self.name.encode("utf-8", "surrogateescape") + b"\0", digest_size=16)
        for member in self.members:
            facts = member.facts()
            digest.update(len(facts).to_bytes(8, "big") + facts)
        return digest.hexdigest()


def hash_of(file: IO[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    with closing(file):
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


def source_of_text(name: str, text: str) -> Source:
    data = text.encode("utf-8", "surrogateescape")
    return Source(name, [Member("", tarfile.REGTYPE, 0o644, size=len(data), open=lambda: io.BytesIO(data))])


def members_of_tar(archive: tarfile.TarFile, name: str) -> Iterator[Member]:
    """Yield the members of an archive, which must stay open. Raises ValueError for one that COPY cannot copy."""
    for info in archive:
        path = "" if info.name in (".", "./") else info.name.removeprefix("./").rstrip("/")
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{name}: {info.name} leads out of the folder it is unpacked in")
        if info.sparse is not None:  # A few bytes of such a member stand for any number of zeros.
            raise ValueError(f"{name}: {info.name} is a sparse file; pack it with all its bytes")
        kind = tarfile.REGTYPE if info.isreg() else info.type
        if kind not in _KIND:
            raise ValueError(f"{name}: {info.name} is neither file, folder nor link")
        goal = info.linkname.removeprefix("./") if info.islnk() else info.linkname
        facts = (info.mode & 0o7777, info.uid, info.gid, goal, info.size if info.isreg() else 0)
        yield Member(path, kind, *facts, open=_opener(archive, info))


def _opener(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
    def open_member() -> IO[bytes]:
        try:
            file = archive.extractfile(info)
        except (KeyError, RecursionError):  # A link to nothing, or to itself.
            file = None
        if file is None:
            raise ValueError(f"{info.name} is a hard link to {info.linkname}, which is no file of the archive")
        return file

    return open_member


def pack(members: list[Member], most: int) -> Iterator[bytes]:
    """Yield tars of the members, each of at most about `most` bytes unless a single file is larger."""
    kept: list[Member] = []
    size = 0
    for member in members:
        if member.size > MAX_FILE:
            raise ValueError(f"{member.path} has {member.size} bytes; at most {MAX_FILE} can be copied")
        if kept and size + member.size > most:
            yield _tar(kept)
            kept, size = [], 0
        kept.append(member)
        size += member.size + 1024
    if kept:
        yield _tar(kept)


def _tar(members: list[Member]) -> bytes:
    buffer = io.BytesIO()
    packed = set()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for member in members:
            info = tarfile.TarInfo(member.path)
            info.type, info.mode, info.uid, info.gid = member.kind, member.mode, member.uid, member.gid
            info.linkname, info.mtime = member.goal, FIXED_TIME
            if member.kind == tarfile.LNKTYPE and member.goal not in packed:
                info.type, info.linkname = tarfile.REGTYPE, ""  # The other name is in another tar or is not copied.
            data = _content(member) if info.isreg() else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            packed.add(member.path)
    return buffer.getvalue()


def _content(member: Member) -> bytes:
    """Return a file's content, or raise ValueError if it has changed since its digest was computed."""
    assert member.open is not None
    with closing(member.open()) as file:
        data = file.read()
    if member.digest and hash_of(io.BytesIO(data)) != member.digest:
        raise ValueError(f"{member.path} was changed while it was copied; build again")
    return data
