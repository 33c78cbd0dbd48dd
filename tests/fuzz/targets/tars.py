"""Tars: those that are written into a box, those that ADD unpacks, and archives that graders read."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from tests.fuzz.target import Target, kind_of
from tests.fuzz.targets.values import TEXTS

from etude.sandbox.contract import ImageError, RequestRefused
from etude.sandbox.images.archive import damage_as_image_error
from etude.sandbox.images.build.members import members_of_tar, pack
from etude.sandbox.tars import Tar
from etude.tasks.verifiers.archives import ArchiveError, members_of

_NAMES = TEXTS | st.sampled_from(
    [
        *(
            "a",
            "b",
            "a/b",
            "a/b/c",
            "./a",
            "a/",
            "/a",
            "a/../b",
            "..",
            ".wh.a",
            ".wh..wh..opq",
            "a/.wh.b",
            "b/.wh..wh..opq",
        ),
        *(".wh.", ".wh..wh.plnk/x", "c" * 255, "d/" * 100 + "e", "é", "�", ".wh...", "a//b", " ", "a\nb"),
    ]
)
_NUMBERS = st.integers(0, 3) | st.sampled_from(
    [-1, 0o4755, 0o1777, 65_535, 65_536, 1 << 31, 1 << 33, -(1 << 40), 1 << 60]
)
_TYPES = st.sampled_from(
    [tarfile.REGTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
) | st.sampled_from([*(bytes([kind]) for kind in b"\0003467DKLSVNgxAX\xff")])
_PAX = st.dictionaries(
    st.sampled_from(
        [
            *(
                "path",
                "linkpath",
                "size",
                "mtime",
                "uid",
                "gid",
                "hdrcharset",
                "GNU.sparse.size",
                "GNU.sparse.map",
                "atime",
            ),
            *(
                "GNU.sparse.major",
                "GNU.sparse.minor",
                "GNU.sparse.name",
                "GNU.sparse.realsize",
                "SCHILY.xattr.a",
                "uname",
            ),
        ]
    )
    | TEXTS.filter(bool),
    _NAMES
    | _NUMBERS.map(str)
    | st.sampled_from(["inf", "nan", "-inf", "1e300", "0,1", "0,1,1000000,5", "BINARY", "1", "0", "-5"]),
    max_size=3,
)


@st.composite
def tars(draw: st.DrawFn) -> bytes:
    """A tar whose members are mostly plain and sometimes anything that a header can say."""
    buffer = io.BytesIO()
    formats = st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
    for _ in range(draw(st.integers(0, 6))):
        info = tarfile.TarInfo(draw(_NAMES))
        info.type, info.linkname, info.mode = draw(_TYPES), draw(_NAMES | st.just("")), draw(_NUMBERS)
        content = draw(st.binary(max_size=40))
        info.size = len(content) + (draw(_NUMBERS) if draw(st.integers(0, 15)) == 0 else 0)
        if draw(st.booleans()):
            info.uid, info.gid, info.mtime = draw(_NUMBERS), draw(_NUMBERS), draw(_NUMBERS)
        if draw(st.booleans()):
            info.pax_headers = draw(_PAX)
        with contextlib.suppress(ValueError, UnicodeError):
            buffer.write(info.tobuf(draw(formats), "utf-8", "surrogateescape"))
            buffer.write(content + bytes(-len(content) % tarfile.BLOCKSIZE))
    return buffer.getvalue() + bytes(draw(st.sampled_from([0, 512, 1024, 1024])))


def examples() -> list[bytes]:
    made = []
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
            for name, kind, goal in (
                ("a", tarfile.DIRTYPE, ""),
                ("a/b", tarfile.REGTYPE, ""),
                ("a/c", tarfile.SYMTYPE, "../x"),
                ("a/d", tarfile.LNKTYPE, "a/b"),
                ("é" * 120 + "/x", tarfile.REGTYPE, ""),
            ):
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.size = kind, goal, 5 if kind == tarfile.REGTYPE else 0
                info.mtime = 1.5 if format == tarfile.PAX_FORMAT else 1
                tar.addfile(info, io.BytesIO(b"hello"))
        made.append(buffer.getvalue())
    info = tarfile.TarInfo("sparse")
    info.size = 5
    info.pax_headers = {"GNU.sparse.map": "0,5", "GNU.sparse.size": "1000", "GNU.sparse.name": "s"}
    made.append(info.tobuf(tarfile.PAX_FORMAT) + b"hello" + bytes(507 + 1024))
    return made


_MOST_BYTES, _MOST_FILES = 1 << 20, 200


def _run_tar(data: bytes) -> str:
    try:
        tar = Tar(data, max_bytes=_MOST_BYTES, max_files=_MOST_FILES)
        contents = [tar.contents(batch) for batch in tar.batches(1 << 12)]
    except RequestRefused as error:
        return kind_of(error)
    assert sum(map(len, contents)) == sum(member.size for member in tar.members) <= _MOST_BYTES
    assert len(tar.members) <= _MOST_FILES
    files: set[str] = set()
    for member in tar.members:
        steps = member.name.split("/")
        assert not {"", ".", ".."} & set(steps), "a name that leads elsewhere"
        assert "\0" not in member.name
        assert "\0" not in member.goal
        assert not {"/".join(steps[:depth]) for depth in range(1, len(steps))} & files, "a member below a file"
        assert 0 <= member.uid <= 65535
        assert 0 <= member.gid <= 65535
        assert 0 <= member.mode <= 0o7777
        assert 0 <= member.modified <= 1 << 40
        assert member.kind != "hard" or member.goal in files, "a hard link to something else"
        if member.kind != "folder":
            files.add(member.name)
        os.fsencode(member.name + member.goal)
    return f"{min(len(tar.members), 5)} members"


def _run_add(data: bytes) -> str:
    try:
        with damage_as_image_error("the archive"), tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            members = list(members_of_tar(archive, "the archive"))
            for member in members:
                member.facts()
            packed = list(pack(members, 1 << 16))
    except (ImageError, ValueError) as error:
        return kind_of(error)
    assert all(".." not in member.path.split("/") and not member.path.startswith("/") for member in members)
    assert sum(map(len, packed)) <= len(data) + (len(members) + len(packed)) * (4 * tarfile.RECORDSIZE)
    return f"{min(len(members), 5)} members"


def _run_archive(data: bytes) -> str:
    try:
        found = members_of(data)
    except ArchiveError as error:
        return kind_of(error)
    assert sum(map(len, found.values())) <= 8 << 20
    return f"{min(len(found), 5)} members"


def _zip(names: list[str], content: bytes, method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive, warnings.catch_warnings(action="ignore"):  # A name twice.
        for name in names:
            with contextlib.suppress(UnicodeError, ValueError):
                archive.writestr(zipfile.ZipInfo(name), content * 50, method)
    return buffer.getvalue()


_ZIPS: st.SearchStrategy[bytes] = st.builds(
    _zip,
    st.lists(_NAMES, max_size=4, unique=True),
    st.binary(max_size=30),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
)


def _target(name: str, run: Callable[[bytes], str], *watches: str, **more: Any) -> Target:
    return Target(name, run, more.get("inputs", tars()), (*watches, "tarfile"), more.get("examples", examples))


TARGETS = (
    _target("tar", _run_tar, "etude.sandbox.tars"),
    _target("add", _run_add, "etude.sandbox.images.build.members", "etude.sandbox.images.archive"),
    _target(
        "archive",
        _run_archive,
        *("etude.tasks.verifiers.archives", "zipfile"),
        inputs=tars() | _ZIPS,
        examples=lambda: [*examples(), _zip(["a", "b/c"], b"hello", zipfile.ZIP_DEFLATED)],
    ),
)
