"""Collects the files of the pytest that is installed here, to add them as a layer to images that have no pytest."""

from __future__ import annotations

import functools
import importlib.util
import re
import struct
from importlib import metadata
from pathlib import Path

from etude.tasks.task import TaskError

_DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""What pytest imports on Python 3.11 and newer. All is pure Python, so any of these interpreters can use it."""
_UNUSED = re.compile(r"pygments/(styles|lexers|formatters)/(?!(__init__|_mapping|default|diff|python|terminal)\.py)")
"""Matches files of pygments that pytest does not need. They make up eight tenths of the bytes."""
FOLDER = "/opt/etude-pytest"


@functools.cache
def pytest_files() -> dict[str, bytes]:
    """Return the files of pytest and what it imports, by path. Raises TaskError if any is not installed here."""
    found: dict[str, bytes] = {}
    for distribution in _DISTRIBUTIONS:
        try:
            files = metadata.files(distribution) or []
        except metadata.PackageNotFoundError as error:
            raise TaskError(
                f'verifier.pytest = "brought" needs {distribution} beside Étude, and it is not installed: install '
                "pytest, or grade in an image that has it"
            ) from error
        for path in files:
            name = path.as_posix()
            if path.parts[0] != ".." and "__pycache__" not in path.parts and not _UNUSED.match(name):
                place = Path(str(path.locate()))
                found[name] = place.read_bytes()
                found.update(_compiled(name, place))
    return found


def _compiled(name: str, place: Path) -> dict[str, bytes]:
    """Return a module's up-to-date bytecode by its path, or {} if there is none. Its header is changed to one that
    tells Python not to check the source's time. Without bytecode, every run in a box would compile pytest anew, which
    takes longer than most suites."""
    if place.suffix != ".py":
        return {}
    cached = Path(importlib.util.cache_from_source(str(place)))
    info = place.stat()
    stamp = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(info.st_mtime), info.st_size)
    if not cached.is_file() or (data := cached.read_bytes())[:16] != stamp:
        return {}
    folder, _, _ = name.rpartition("/")
    unchecked = importlib.util.MAGIC_NUMBER + struct.pack("<IQ", 1, 0)
    return {f"{folder}/__pycache__/{cached.name}".lstrip("/"): unchecked + data[16:]}
