"""The log of what boxes asked of the network: one row per request that passed, and per refusal with its reason.

Invariant: no request passes without its row. Refusals cost a box nothing, so only the first thousand per box are
written; its last row says how many more there were. Each backend appends to its own file; readers merge files by time.
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
_LONGEST = 2000


class EgressLog:
    """The log file of one backend."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._file = folder / f"{owner}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, row: dict[str, Any]) -> None:
        append_rows(self._file, [{"time": round(time.time(), 3), **row}])


class BoxLog:
    """The rows of one box."""

    def __init__(self, log: EgressLog, box: str, policy: str) -> None:
        self._log, self._who = log, {"box": box, "policy": policy}
        self._refusals = 0
        self._names: set[str] = set()

    def passed(self, **row: Any) -> None:
        self._log.write({**self._who, **_short(row)})

    def refused(self, reason: str, **row: Any) -> None:
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            self._log.write({**self._who, **_short(row), "refused": reason})

    def refused_name(self, name: str, reason: str) -> None:
        """Logs each refused name once, since resolvers ask for both kinds of address, and repeatedly."""
        key = name.lower()
        if key not in self._names and len(self._names) < MOST_REFUSALS:
            self._names.add(key)
            self.refused(reason, host=name, kind="name")

    def close(self) -> None:
        if self._refusals > MOST_REFUSALS:
            self._log.write({**self._who, "refused": f"{self._refusals - MOST_REFUSALS} more, not written"})


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """The merged rows of all backends that have written to the folder."""
    files = [read_rows(file) for file in sorted(folder.glob("*.jsonl"))]
    return heapq.merge(*files, key=operator.itemgetter("time"))


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value[:_LONGEST] if isinstance(value, str) else value for key, value in row.items()}
