"""What boxes on the host's base see of the host: its files by name, and the lines of all its texts in one book.

The book is made once for a state of the host, by one pass over all that is shown. It answers in milliseconds which
files may say a task's lines; whether they do is then read in them, so no finding rests on two numbers that are alike.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import xxhash

from etude.sandbox.contract import Sandboxes
from etude.sandbox.images.host_base import PYTHON, SYSTEM
from etude.sandbox.images.image import HOST
from etude.tasks.seal.needles import LEAST, LONGEST, WITHIN_LINES, Needle, Needles, Twin
from etude.tasks.seal.peel import TooMuch, unfold
from etude.tasks.seal.root import PIECE_BYTES, Root, members, owner_of, run
from etude.tasks.seal.scan import SealReport, box_of, scan_some

_SHOWN = (*SYSTEM, PYTHON)
_FORMAT = "etude-base/2"
_LIST = (resources.files("etude.tasks.box") / "list_files.py").read_bytes()
_AT_ONCE = 4_000_000
"""Lines that are held before those said again are left out."""
_Numbers = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Base:
    digest: str
    """Of names, sizes and times of change: another one after every change of what is installed."""
    sizes: dict[str, int] = field(repr=False)
    """Of all files by their paths."""

    def copies(self, twins: Iterable[Twin]) -> list[str]:
        """Files that may be other versions of these: they are called as those are, and hardly differ in size."""
        wanted = list(twins)
        names = tuple({f"/{twin.name}" for twin in wanted})
        called = [path for path in self.sizes if path.endswith(names)] if names else []
        return [
            path
            for path in called
            if any(twin.is_name_of(path) and twin.size <= 4 * self.sizes[path] <= 16 * twin.size for twin in wanted)
        ]


async def look_at_base(sandboxes: Sandboxes) -> Base:
    async with box_of(sandboxes, HOST) as box:
        # By our own program: not every system's `find` tells sizes. The interpreter's own folder is made anew for every
        # store of images, and holds it alone.
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
class Book:
    numbers: _Numbers
    """Of each line of some length, sorted."""
    places: _Places
    """For each, the first file that says it."""
    names: Sequence[str]

    def files_with(self, needles: Iterable[Needle]) -> list[str]:
        """The first file that says each of these lines. Of a part of a line, or of several, it knows nothing."""
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
    def read(cls, path: Path) -> Book | None:
        """None where there is none, or no whole one."""
        try:
            with np.load(path) as found:
                names = found["names"].tobytes().decode("utf-8", "surrogateescape").split("\0")
                return cls(found["numbers"], found["places"], names)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None


async def write_book(sandboxes: Sandboxes) -> Book:
    """Of all texts that the base shows, wrapped ones too. A file of more than 32 MB is none."""
    made = _Writing()
    async with box_of(sandboxes, HOST) as box:
        root = Root(box, owner_of(sandboxes), frozenset())
        there = await run(box, ["find", *_SHOWN, "-maxdepth", "0", "-type", "d", "-print0"], "", good=(0, 1))
        for place in there.split(b"\0")[:-1]:
            async for piece in root.pieces(place.decode(), file_bytes=PIECE_BYTES):
                if piece.tar:
                    await asyncio.to_thread(made.add_tar, piece.folder, piece.tar)
    return made.book()


async def scan_base(sandboxes: Sandboxes, base: Base, needles: Needles, book: Book | None = None) -> SealReport:
    """Of the files that may hold the solution: copies of what it changes and, if there is a book, whoever says one of
    its lines."""
    paths = {*base.copies(needles.twins), *(book.files_with(needles.items) if book else ())}
    return await scan_some(sandboxes, HOST, sorted(paths), needles) if paths else SealReport(lines=len(needles.items))


class _Writing:
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

    def book(self) -> Book:
        if not self._names:
            return Book(np.empty(0, np.uint64), np.empty(0, np.uint32), ())
        self._merge()
        return Book(self._numbers[0], self._places[0], tuple(self._names))


def _numbers(path: str, data: bytes) -> Iterator[int]:
    try:
        for _, content in unfold(path, data):
            if b"\0" not in content:
                lines = content.translate(None, WITHIN_LINES).split(b"\n")
                yield from (xxhash.xxh3_64_intdigest(line[:LONGEST]) for line in lines if len(line) >= LEAST)
    except TooMuch:
        return
