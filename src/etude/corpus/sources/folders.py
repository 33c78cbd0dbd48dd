"""Files on disk: those below a folder, and the standard library of the interpreter.

A part names the size and modification time of each file, so that a changed file makes another part.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from etude.corpus.cleaning import INSTALLED, is_licence_file, licence_of_text, nearest
from etude.corpus.document import Found, Wanted
from etude.corpus.errors import CorpusError

_TESTS = ("test", "tests", "idle_test", "turtledemo")
_TABLES = ("encodings", "lib2to3", "pydoc_data")
_SKIPPED = INSTALLED.union(_TESTS, _TABLES)
_MIN_BYTES = 200
PART_BYTES, PART_FILES = 8 << 20, 2000
Licences = tuple[tuple[str, tuple[str, ...]], ...]
"""The licences of each folder that has a file of them."""


@dataclass(frozen=True, slots=True)
class FilesPart:
    root: Path
    origin: str
    repository: str
    files: tuple[tuple[str, int, int], ...]
    """Path below the root, bytes, and modification time in nanoseconds of each file."""
    licences: Licences = ()

    def size(self, wanted: Wanted) -> int:
        return sum(size for name, size, _ in self.files if wanted(name, size))

    def read(self, wanted: Wanted) -> Iterator[Found]:
        licences = dict(self.licences)
        for name, size, _ in self.files:
            data = None
            if wanted(name, size):
                try:
                    data = (self.root / name).read_bytes()
                except OSError as error:
                    raise CorpusError(f"cannot read {self.root / name}: {error.strerror}") from error
            yield Found(name, data, size, self.origin, self.repository, "", nearest(name, licences))


def stdlib() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def stdlib_parts(max_bytes: int) -> Iterator[FilesPart]:
    origin = f"{platform.python_implementation().lower()} {platform.python_version()}"
    return _python_parts(stdlib(), max_bytes, origin)


def python_parts(root: Path, max_bytes: int) -> Iterator[FilesPart]:
    """Yield the Python files below a folder, sorted. Hidden files, files in folders of tests, data tables or installed
    packages, and files that are too small or too large are left out."""
    if not root.is_dir():
        raise CorpusError(f"corpus.folders: {root} is not a folder")
    return _python_parts(root, max_bytes, root.name)


def _python_parts(root: Path, max_bytes: int, origin: str) -> Iterator[FilesPart]:
    return files_parts(root, origin, "", _python_paths(root, max_bytes))


def _python_paths(root: Path, max_bytes: int) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _SKIPPED.intersection(parts[:-1]) or any(part.startswith(".") for part in parts):
            continue
        if _MIN_BYTES <= path.stat().st_size <= max_bytes:
            yield path


def folder_parts(root: Path, paths: Iterable[Path]) -> Iterator[FilesPart]:
    """Yield files of any language below a folder, with the licences of its folders."""
    every = list(paths)
    names = [path.relative_to(root).as_posix() for path in every]
    texts = {
        name: path.read_bytes()
        for name, path in zip(names, every, strict=True)
        if is_licence_file(name, path.stat().st_size)
    }
    return files_parts(root, root.name, root.name, iter(every), licences_of(texts))


def files_parts(
    root: Path, origin: str, repository: str, paths: Iterator[Path], licences: Licences = ()
) -> Iterator[FilesPart]:
    files: list[tuple[str, int, int]] = []
    held = 0
    for path in paths:
        about = path.stat()
        files.append((path.relative_to(root).as_posix(), about.st_size, about.st_mtime_ns))
        held += about.st_size
        if held >= PART_BYTES or len(files) >= PART_FILES:
            yield FilesPart(root, origin, repository, tuple(files), licences)
            files, held = [], 0
    if files:
        yield FilesPart(root, origin, repository, tuple(files), licences)


def licences_of(texts: Mapping[str, bytes]) -> Licences:
    """Return the licences by folder, given the contents of all licence files by their paths."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, text in sorted(texts.items()):
        found[str(PurePosixPath(name).parent)].append(licence_of_text(text.decode("utf-8", "replace")))
    return tuple((folder, tuple(names)) for folder, names in found.items())


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield (folder, its subfolders, its regular files) as os.walk does, sorted, without hidden ones and links.
    Deleting a subfolder from the list leaves it out."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith(".") and not Path(folder, name).is_symlink())
        files = [name for name in sorted(names) if not name.startswith(".") and _is_regular(Path(folder, name))]
        yield Path(folder), below, files


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
