"""Joins the files of a repository into long documents, each file after those that it imports, so that a definition
comes before its uses.

Imports are found by their lines, without a parser, and matched with the ends of paths: `from app.models import User`
means app/models.py or app/models/user.py, wherever in the repository these lie. An import that fits no file, or
several, is somebody else's or ambiguous, and is ignored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

_PYTHON = re.compile(r"^[ \t]{0,40}(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([\w.]+))", re.M)
_QUOTED = re.compile(
    r"""^[ \t]{0,8}(?:\#[ \t]*include|import|export|require(?:_relative)?|from|const|let|var|\}|mod)\b[^\n"']{0,200}
    ["']([\w@./-]{1,200})["']""",
    re.M | re.X,
)
_DOTTED = re.compile(r"^[ \t]{0,8}(?:import|use|pub[ \t]+use|mod|pub[ \t]+mod|using)[ \t]+([\w.:]{1,200})[ \t]*;", re.M)
_INDEX_FILES = ("__init__", "index", "mod", "lib")


class File(NamedTuple):
    number: int
    """Number of the document among all."""
    name: str
    imports: tuple[str, ...]
    size: int


def imports_of(text: str, language: str) -> tuple[str, ...]:
    """Return what a file imports, as paths without suffixes: "app/models"."""
    if language == "python":
        found = set()
        for module, names, plain in _PYTHON.findall(text):
            path = (module or plain).strip(".").replace(".", "/")
            found.add(path)
            found.update(f"{path}/{name.strip()}".strip("/") for name in names.split(","))
    else:
        found = {
            str(PurePosixPath(path).with_suffix("")).lstrip("./") for path in _QUOTED.findall(text) if path[-1] != "."
        }
        found |= {path.replace("::", "/").replace(".", "/") for path in _DOTTED.findall(text)}
    return tuple(sorted(path for path in found if path))


def joined(files: Sequence[File], most_bytes: int) -> Iterator[list[File]]:
    """Yield the files of one repository in groups of at most `most_bytes`, in order. A larger file is a group of its
    own."""
    group: list[File] = []
    held = 0
    for file in _ordered(files):
        if group and held + file.size > most_bytes:
            yield group
            group, held = [], 0
        group.append(file)
        held += file.size
    if group:
        yield group


def _ordered(files: Sequence[File]) -> list[File]:
    """Return the files so that each comes after those that it imports. Files that import one another in a circle, and
    all others, are in the order of their paths."""
    by_name = sorted(files, key=lambda file: file.name)
    by_end = _by_end(by_name)
    done: set[int] = set()
    order: list[File] = []
    for first in by_name:
        waiting: list[tuple[File, bool]] = [(first, False)]
        while waiting:
            file, imported = waiting.pop()
            if imported:
                order.append(file)
            elif file.number not in done:
                done.add(file.number)
                waiting.append((file, True))
                needs = {found.name: found for path in file.imports if (found := _resolve(path, by_end))}
                waiting.extend((needs[name], False) for name in sorted(needs, reverse=True))
    return order


def _by_end(files: Sequence[File]) -> dict[str, list[File]]:
    """Map the last part, and the last two parts, of each path without its suffix to the files that end so."""
    found: dict[str, list[File]] = defaultdict(list)
    for file in files:
        parts = _parts(file.name)
        for length in range(1, len(parts) + 1):
            found["/".join(parts[-length:])].append(file)
    return found


def _parts(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).with_suffix("").parts
    return parts[:-1] if len(parts) > 1 and parts[-1] in _INDEX_FILES else parts


def _resolve(path: str, by_end: dict[str, list[File]]) -> File | None:
    """Return the one file that an import means: by its whole path, or by the end of it that fits a single file. A
    single name is enough only where it is all that was written."""
    parts = path.split("/")
    for first in range(max(1, len(parts) - 1)):
        found = by_end.get("/".join(parts[first:]), ())
        if len(found) == 1:
            return found[0]
    return None
