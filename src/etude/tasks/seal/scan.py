"""Checks that a sealed image does not contain the solution, by searching every file that the agent's user may read for
the solution's lines.

The search covers the files as they are, the contents of archives and compressed files, and all objects of every
repository, reachable or not. Files too large to be searched are listed in the report, never skipped silently. Base64,
encrypted data and disk images are not unpacked.
"""

from __future__ import annotations

import asyncio
import re
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

from etude.sandbox.contract import Box, BoxSpec, Sandboxes
from etude.tasks.fresh_box import fresh_box
from etude.tasks.seal.leak_patterns import Needle, Needles, without_whitespace
from etude.tasks.seal.leftovers import Removed
from etude.tasks.seal.nested_archives import UnpackLimit, unpack_nested
from etude.tasks.seal.root import LIMITS, Root, members, owner_of

LARGEST = 256 << 20
"""Largest file that is searched, in bytes: each is read into memory as a whole."""
_ENOUGH_TESTS = 2
"""How many lines of the hidden tests in one file make a finding. Tests of other projects may share a single one."""
_BYTECODE = re.compile(r"(.*?)(?:(?<=/)__pycache__/)?([^/.]+)(?:\.[^/]+)?\.py[co]$")


@dataclass(frozen=True, slots=True)
class Finding:
    """A file that shows a part of the solution or of the hidden tests."""

    file: str
    """Path in the image; "a.whl!b.py" is a file inside another."""
    what: str

    def __str__(self) -> str:
        return f"{self.file} holds {self.what}"


@dataclass(frozen=True, slots=True)
class SealReport:
    """What sealing removed from an environment, and what the search for the solution found."""

    removed: tuple[Removed, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Files that show a part of the solution or of the hidden tests. Any such file makes the task unfit."""
    unread: tuple[str, ...] = ()
    """Files that were not searched, because they or their unpacked contents are too large."""
    lines: int = 0
    """Number of lines that were searched for. It is 0 if no line of the solution and of the hidden tests is
    distinctive: long enough, and neither in the workspace nor in Python's standard library."""
    scanned_files: int = 0

    def combined_with(self, other: SealReport) -> SealReport:
        """Return one report of two searches for the same lines in different files."""
        return SealReport(
            self.removed + other.removed,
            self.findings + other.findings,
            self.unread + other.unread,
            self.lines,
            self.scanned_files + other.scanned_files,
        )


@dataclass(slots=True)
class Scanner:
    needles: Needles
    findings: list[Finding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    files: int = 0
    _enough: int = field(init=False)
    _sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    _bytecode: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._enough = min(_ENOUGH_TESTS, sum(needle.of_tests for needle in self.needles.items))

    def add(self, path: str, data: bytes) -> None:
        self.files += 1
        try:
            for name, content in unpack_nested(path, data):
                if hits := self._hits(name, content):
                    self.findings.append(Finding(name, hits[0].shown))
        except UnpackLimit:
            self.unread.append(path)

    def add_tar(self, folder: str, tar: bytes) -> None:
        for info, data in members(tar):
            if info.isfile():
                path = f"{folder.rstrip('/')}/{info.name}"
                self._record_bytecode(path, info, data)
                self.add(path, data)

    def _hits(self, name: str, data: bytes) -> list[Needle]:
        """Return the needles (lines of the solution or of the hidden tests) by which this file is a finding; none if it
        is not one."""
        text = without_whitespace(data)
        found = [needle for needle in self.needles.items if needle.text in text]
        hidden = [needle for needle in found if needle.of_tests]
        leaked = [versions.leaked_in(text) for versions in self.needles.file_versions if versions.matches_path(name)]
        return [
            *(needle for needle in found if not needle.of_tests),
            *(hidden if len(hidden) >= self._enough else []),
            *filter(None, leaked),
        ]

    # -- bytecode, which contains no source lines

    def _record_bytecode(self, path: str, info: tarfile.TarInfo, data: bytes) -> None:
        """Record the modification time and size of a source file, or those that bytecode states for its source, so that
        the two can be matched. Only files named like a Python file that the reference changes are recorded."""
        if path.endswith(".py") and path.rpartition("/")[2][:-3] in self.needles.stems:
            self._sources[path] = (int(info.mtime) & 0xFFFFFFFF, info.size & 0xFFFFFFFF)
        elif (match := _BYTECODE.match(path)) and match[2] in self.needles.stems and len(data) >= 16:
            flags, modified, size = (int.from_bytes(data[at : at + 4], "little") for at in (4, 8, 12))
            if not flags:  # With flags, the file identifies its source by a hash, as packagers do.
                self._bytecode[path] = (f"{match[1] or ''}{match[2]}.py", modified, size)

    def _stale_bytecode(self) -> Iterable[Finding]:
        """Yield a finding for bytecode not compiled from the source beside it: it may come from the solution."""
        for path, (source, modified, size) in sorted(self._bytecode.items()):
            if self._sources.get(source) != (modified, size):
                yield Finding(path, f"bytecode that was not compiled from the {source.rpartition('/')[2]} beside it")

    def report(self, removed: Iterable[Removed] = ()) -> SealReport:
        return SealReport(
            removed=tuple(removed),
            findings=(*self.findings, *self._stale_bytecode()),
            unread=tuple(self.unread),
            lines=len(self.needles.items),
            scanned_files=self.files,
        )


def scan_files(files: Mapping[str, bytes], needles: Needles) -> SealReport:
    """Search an environment's own files, without the host's system folders, which its agent also sees."""
    scanner = Scanner(needles)
    for path, data in files.items():
        scanner.add(path, data)
    return scanner.report()


async def scan_image(
    sandboxes: Sandboxes, image: str, needles: Needles, *, removed: Iterable[Removed] = ()
) -> SealReport:
    """Search all files of an image, read in a fresh box. The report also lists what sealing `removed`."""
    scanner = Scanner(needles)
    async with scan_box(sandboxes, image) as box:
        root = await Root.of(box, owner_of(sandboxes))
        async for piece in root.pieces(file_bytes=LARGEST):
            if piece.unread:
                scanner.unread.append(piece.unread)
            if piece.tar:
                await asyncio.to_thread(scanner.add_tar, piece.folder, piece.tar)
    return scanner.report(removed)


async def scan_paths(sandboxes: Sandboxes, image: str, paths: Iterable[str], needles: Needles) -> SealReport:
    """Search only these files of an image. Missing and unreadable ones are skipped."""
    scanner = Scanner(needles)
    async with scan_box(sandboxes, image) as box:
        for path in paths:
            with suppress(FileNotFoundError, PermissionError):
                scanner.add(path, await box.read_file(path, max_bytes=LARGEST))
    return scanner.report()


def scan_box(sandboxes: Sandboxes, image: str) -> AbstractAsyncContextManager[Box]:
    return fresh_box(sandboxes, BoxSpec(image, limits=LIMITS, name="scan"))
