"""What a benchmark has measured already, so that an interrupted command goes on where it was.

A measurement is kept under a key made of everything that decides it: the model, the question in full, the settings. So
nothing kept is ever wrong for another question; at most it is not needed any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.journal import append_rows, drop_torn_line, read_rows


def key_of(spec: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:32]


class Kept:
    """Measurements by key, each on the disk when `put` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_torn_line(path)
        self._values: dict[str, Any] = {row["key"]: row["value"] for row in read_rows(path)}

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def put(self, key: str, value: Any) -> None:
        append_rows(self._path, [{"key": key, "value": value}])
        self._values[key] = value

    def remove(self) -> None:
        """Delete the file, once what it is for is written elsewhere."""
        self._path.unlink(missing_ok=True)
