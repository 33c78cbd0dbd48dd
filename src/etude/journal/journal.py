"""The writing side of the journal: one append-only file per process.

Invariants: only the process that opened a file writes to it. An entry has reached the kernel when the call returns, so
killing the process loses no entry. A failed write leaves no partial line. Times within a file never decrease.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import threading
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from etude.journal.files import disk_problem
from etude.journal.waiting import Waiting


class JournalError(Exception):
    """The journal cannot be written or read; the message says which file, why, and what to do."""


class Journal:
    """Writes entries to this process's file in `folder`. `process` names the part of Étude that writes (driver,
    trainer)."""

    def __init__(self, folder: Path, process: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._]*(-[A-Za-z0-9._]+)*", process):
            raise JournalError(f"process name {process!r}: expected letters, digits, dots, underscores and dashes")
        self.folder = Path(folder)
        self.process = process
        self._lock = threading.Lock()
        self._last_time = 0.0
        self._descriptor = -1
        self._open()

    def __reduce__(self) -> tuple[type[Journal], tuple[Path, str]]:
        """Unpickling in another process opens a new file there."""
        return Journal, (self.folder, self.process)

    def event(self, kind: str, /, **fields: object) -> None:
        """Record an event. Field values are JSON values, numpy scalars, paths or enums."""
        self._write(kind, fields)

    def metrics(self, *, step: int, **values: object) -> None:
        self._write("metrics", {"step": step, **values})

    def progress(self, stage: str, done: float, total: float, *, rate: float | None = None, unit: str = "") -> None:
        self._write("progress", {"stage": stage, "done": done, "total": total, "rate": rate, "unit": unit})

    def waiting(self, *, on: str, deadline: float) -> Waiting:
        """Return a context manager (`with` or `async with`) that records a wait for the process `on`, and how long it
        took.

        Every wait for another process goes through this. When the deadline passes, `async with` cancels its body and
        raises WaitExpired, which names the process. A plain `with` cannot interrupt its body, so give the deadline to
        the blocking call too; the entry then says that the wait was late.
        """
        return Waiting(self.process, on, deadline, lambda fields: self._write("wait", fields))

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _open(self) -> None:
        self._pid = os.getpid()
        start = time.time_ns() // 1_000_000
        try:
            _make_private(self.folder)
            while True:
                self.path = self.folder / f"{self.process}-{self._pid}-{start}.jsonl"
                try:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                    self._descriptor = os.open(self.path, flags, 0o600)
                    break
                except FileExistsError:
                    start += 1
        except OSError as error:
            raise JournalError(f"cannot open a journal in {self.folder}: {disk_problem(error)}") from error
        self._size = 0

    def _write(self, kind: str, fields: Mapping[str, object]) -> None:
        with self._lock:
            if self._descriptor < 0:
                raise JournalError(f"journal {self.path} is closed")
            if self._pid != os.getpid():
                # After a fork the file belongs to the parent: close the inherited descriptor and open a new file.
                os.close(self._descriptor)
                self._open()
            self._last_time = max(self._last_time, time.time())
            entry = {"time": self._last_time, "kind": kind, "fields": _finite(fields)}
            line = json.dumps(entry, default=_plain, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
            written = 0
            try:
                written = os.write(self._descriptor, line)
                if written != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                if written:
                    os.ftruncate(self._descriptor, self._size)
                raise JournalError(f"cannot write journal {self.path}: {disk_problem(error)}") from error
            self._size += len(line)


def _make_private(folder: Path) -> None:
    """Create a folder and its missing parents, accessible by their owner only (0700)."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by the strings "nan", "inf" and "-inf"; unwrap numpy scalars."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    item = getattr(value, "item", None)
    return _finite(item()) if callable(item) and getattr(value, "shape", None) == () else value


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"a journal field cannot hold a {type(value).__name__}")
