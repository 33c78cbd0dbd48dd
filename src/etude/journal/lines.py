"""JSON Lines files that a process appends to until it ends or is killed.

Invariant: a row counts once its line is complete, newline included. An incomplete last line is ignored; damage anywhere
else is an error that names the line.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from etude.journal.journal import JournalError


def whole_lines(file: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, to which another process may be appending; none if the file is missing."""
    if not file.exists():
        return
    with file.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            yield line[:-1]


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(whole_lines(file), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise JournalError(f"{file} line {number} is damaged: expected a JSON object, found {line[:40]!r}")
        yield row


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl by step. If a resumed stage logged a step twice, the later row wins."""
    by_step = {row["step"]: row for row in read_rows(file)}
    return [by_step[step] for step in sorted(by_step)]


def append_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append all rows or none. On a full disk the partial write is undone, so that a later append starts a new line."""
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with file.open("ab", buffering=0) as out:
        before = out.tell()
        try:
            if out.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        except OSError:
            with suppress(OSError):
                out.truncate(before)
            raise


def drop_torn_line(file: Path) -> None:
    """Remove an incomplete last line, left by a killed writer, which the first append would otherwise continue."""
    if not file.exists():
        return
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.truncate(file, whole)
