"""Searches the host's base (the system folders that boxes show) for a task's solution, by file names and by an index of
all lines.

The index (`HostIndex`) is built once per state of the host, in one pass over all visible text files. It answers in
milliseconds which files may contain a task's lines. Those files are then read and searched, so a collision of line
hashes never becomes a finding.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import xxhash

from etude.sandbox.contract import Sandboxes
from etude.sandbox.images.host_base import PYTHON, SYSTEM
from etude.sandbox.images.image import HOST
from etude.tasks.seal.leak_patterns import LEAST, LONGEST, WITHIN_LINES, FileVersions, Needle, Needles
from etude.tasks.seal.nested_archives import UnpackLimit, unpack_nested
from etude.tasks.seal.root import PIECE_BYTES, Root, members, owner_of, run
from etude.tasks.seal.scan import SealReport, scan_box, scan_paths

_SHOWN = (*SYSTEM, PYTHON)
_FORMAT = "etude-base/2"
_LIST = (resources.files("etude.tasks.box") / "list_files.py").read_bytes()
_AT_ONCE = 4_000_000
"""Maximum number of line hashes to hold in memory before duplicates are merged."""
_Numbers = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Base:
    """The files that boxes show from the host's system folders."""

    digest: str
    """Hash of the files' names, sizes and modification times, which changes when installed software changes."""
    sizes: dict[str, int] = field(repr=False)
    """Size of each file in bytes, by path."""

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        """The paths in `sizes`, by file name: a search through all paths would take a tenth of a second per task."""
        found: dict[str, list[str]] = {}
        for path in self.sizes:
            found.setdefault(path.rpartition("/")[2], []).append(path)
        return found

    def copies(self, file_versions: Iterable[FileVersions]) -> list[str]:
        """Return the paths that may be other versions of files that the solution changes: of the same name, and of a
        size that differs at most by a factor of four."""
        wanted = list(file_versions)
        last_parts = {versions.name.rpartition("/")[2] for versions in wanted}
        return [
            path
            for part in sorted(last_parts)
            for path in self._by_name.get(part, ())
            if any(
                versions.matches_path(path) and versions.size <= 4 * self.sizes[path] <= 16 * versions.size
                for versions in wanted
            )
        ]


async def list_base(sandboxes: Sandboxes) -> Base:
    async with scan_box(sandboxes, HOST) as box:
        # A program of Étude's lists the files, because not every system's `find` can print sizes. The interpreter's
        # folder is made anew for every image store, and holds only the interpreter.
        interpreter = f"{PYTHON}/bin"
        search = [f"{interpreter}/python3", "-I", "-S", "-B", "-", interpreter, *_SHOWN]
        listed = await run(box, search, "", stdin=_LIST)
    return await asyncio.to_thread(_base_of, listed)


def _base_of(listed: bytes) -> Base:
    sizes = {}
    for row in listed.split(b"\0")[:-1]:
        size, _, path = row.split(b" ", 2)
        sizes[path.decode("utf-8", "surrogateescape")] = int(size)
    return Base(hashlib.sha256(_FORMAT.encode() + listed).hexdigest()[:32], sizes)


@dataclass(frozen=True, slots=True)
class HostIndex:
    """Index of all text lines in the host's system folders: maps each line's hash to one file with that line."""

    numbers: _Numbers
    """Sorted hashes of the files' lines, taken without white space. Lines with fewer than `LEAST` bytes left are
    skipped."""
    places: _Places
    """For each hash in `numbers`, which stands for a line of text: the index in `names` of the first file with this
    line."""
    names: Sequence[str]

    def files_with(self, needles: Iterable[Needle]) -> list[str]:
        """Return files that may contain a needle (a text that reveals the solution) as a whole line, at most one file
        per needle. Needles that are no whole lines are skipped."""
        found = set()
        for needle in needles:
            number = np.uint64(xxhash.xxh3_64_intdigest(needle.text))
            rank = int(np.searchsorted(self.numbers, number))
            if needle.whole and rank < len(self.numbers) and self.numbers[rank] == number:
                found.add(self.names[self.places[rank]])
        return sorted(found)

    def dump(self) -> bytes:
        data = io.BytesIO()
        text = "\0".join(self.names).encode("utf-8", "surrogateescape")
        np.savez(data, numbers=self.numbers, places=self.places, names=np.frombuffer(text, dtype=np.uint8))
        return data.getvalue()

    @classmethod
    def read(cls, path: Path) -> HostIndex | None:
        """Read an index that `dump` made. Return None if the file is missing or damaged."""
        try:
            with np.load(path) as found:
                names = found["names"].tobytes().decode("utf-8", "surrogateescape").split("\0")
                return cls(found["numbers"], found["places"], names)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None


async def build_host_index(sandboxes: Sandboxes) -> HostIndex:
    """Index all text files in the host's system folders, also inside archives. Files of more than 32 MB are skipped."""
    made = _HostIndexBuilder()
    async with scan_box(sandboxes, HOST) as box:
        root = Root(box, owner_of(sandboxes), frozenset())
        there = await run(box, ["find", *_SHOWN, "-maxdepth", "0", "-type", "d", "-print0"], "", good=(0, 1))
        for place in there.split(b"\0")[:-1]:
            async for piece in root.pieces(place.decode(), file_bytes=PIECE_BYTES):
                if piece.tar:
                    await asyncio.to_thread(made.add_tar, piece.folder, piece.tar)
    return made.host_index()


async def scan_base(
    sandboxes: Sandboxes, base: Base, needles: Needles, host_index: HostIndex | None = None
) -> SealReport:
    """Search the host's files for a task's solution. Only files that may hold it are read: other versions of the files
    that the solution changes and, given an index, files with a line of the solution or the hidden tests."""
    paths = {*base.copies(needles.file_versions), *(host_index.files_with(needles.items) if host_index else ())}
    return await scan_paths(sandboxes, HOST, sorted(paths), needles) if paths else SealReport(lines=len(needles.items))


class _HostIndexBuilder:
    def __init__(self) -> None:
        self._names: list[str] = []
        self._numbers: list[_Numbers] = []
        self._places: list[_Places] = []
        self._held = 0

    def add_tar(self, folder: str, tar: bytes) -> None:
        for info, data in members(tar):
            if info.isfile():
                self._add(f"{folder.rstrip('/')}/{info.name}", data)

    def _add(self, path: str, data: bytes) -> None:
        numbers = np.fromiter(set(_numbers(path, data)), dtype=np.uint64)
        if not len(numbers):
            return
        self._numbers.append(numbers)
        self._places.append(np.full(len(numbers), len(self._names), dtype=np.uint32))
        self._names.append(path)
        self._held += len(numbers)
        if self._held > _AT_ONCE:
            self._merge()
            self._held = 0

    def _merge(self) -> None:
        numbers, first = np.unique(np.concatenate(self._numbers), return_index=True)
        self._numbers, self._places = [numbers], [np.concatenate(self._places)[first]]

    def host_index(self) -> HostIndex:
        self._merge()
        return HostIndex(self._numbers[0], self._places[0], tuple(self._names))


def _numbers(path: str, data: bytes) -> Iterator[int]:
    try:
        for _, content in unpack_nested(path, data):
            if b"\0" not in content:
                lines = content.translate(None, WITHIN_LINES).split(b"\n")
                yield from (xxhash.xxh3_64_intdigest(line[:LONGEST]) for line in lines if len(line) >= LEAST)
    except UnpackLimit:
        return
