"""Files of JSON rows, one per line, that a process appends to until it ends or is killed.

Invariant: a row is there once its line is, newline included. A torn last line is as if it had not been written; damage
anywhere else is an error that names the line.
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
    """The lines of a file that may still be written to, without their newlines; none if there is no such file."""
    if not file.exists():
        return
    with file.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                return
            yield line[:-1]


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, in their order."""
    for number, line in enumerate(whole_lines(file), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise JournalError(f"{file} line {number} is damaged: expected a JSON object, found {line[:40]!r}")
        yield row


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The rows of a stage's metrics.jsonl by step. A resumed stage may log a step twice: the later row counted."""
    by_step = {row["step"]: row for row in read_rows(file)}
    return [by_step[step] for step in sorted(by_step)]


def append_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """All of the rows, or none: what others may still append after a full disk is not glued to half a line."""
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
    """Before the first row is appended: a writer that was killed may have left half a line, to which it would be
    glued."""
    if not file.exists():
        return
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.truncate(file, whole)
