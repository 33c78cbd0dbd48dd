"""The log of the boxes' network requests: one row per forwarded request, and one per refusal, with the reason.

Invariant: no request is forwarded without a row. A box can cause refusals at no cost, so only the first thousand per
box are written; a last row counts the others, except names refused after the first thousand names. Each backend appends
to its own file; readers merge the files by time.
"""

from __future__ import annotations

import heapq
import operator
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etude.journal import append_rows, read_rows

MOST_REFUSALS = 1000
"""Maximum number of rows about refused network requests that the log gets from one box."""
_LONGEST = 2000


class EgressLog:
    def __init__(self, folder: Path, owner: str) -> None:
        self._file = folder / f"{owner}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, row: dict[str, Any]) -> None:
        append_rows(self._file, [{"time": round(time.time(), 3), **row}])


class BoxLog:
    def __init__(self, log: EgressLog, box: str, policy: str) -> None:
        self._log, self._who = log, {"box": box, "policy": policy}
        self._refusals = 0
        self._names: set[str] = set()

    def passed(self, **row: Any) -> None:
        self._log.write({**self._who, **_short(row)})

    def refused(self, reason: str, **row: Any) -> None:
        """Log a refused request and the reason, unless the box has already caused MOST_REFUSALS rows."""
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            self._log.write({**self._who, **_short(row), "refused": reason})

    def refused_name(self, name: str, reason: str) -> None:
        """Log a refused DNS name, once per name, since resolvers repeat queries and ask for IPv4 and IPv6 addresses."""
        key = name.lower()
        if key not in self._names and len(self._names) < MOST_REFUSALS:
            self._names.add(key)
            self.refused(reason, host=name, kind="name")

    def close(self) -> None:
        """Write a last row with the number of refusals that were not written, if there are any."""
        if self._refusals > MOST_REFUSALS:
            self._log.write({**self._who, "refused": f"{self._refusals - MOST_REFUSALS} more, not written"})


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of all backends that have written to the folder, merged by time."""
    files = [read_rows(file) for file in sorted(folder.glob("*.jsonl"))]
    return heapq.merge(*files, key=operator.itemgetter("time"))


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value[:_LONGEST] if isinstance(value, str) else value for key, value in row.items()}
