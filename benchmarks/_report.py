"""What every benchmark shares: a steady clock, one JSON line last, and the line of docs/results.md.

`make bench NAME=...` prints; `make bench NAME=... RECORD=1` also appends the result to docs/results.md, with date,
machine, command and the digest of the code that was measured.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from etude.journal import code_digest
from etude.lineage import this_machine

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results.md"


def alternating(ours: Callable[[], object], peer: Callable[[], object], *, runs: int = 3) -> tuple[float, float]:
    """Medians of two works run in turns, so that what else the machine does falls on both."""
    taken: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + 1):
        for work, times in zip((ours, peer), taken, strict=True):
            begun = time.perf_counter()
            work()
            if run:
                times.append(time.perf_counter() - begun)
    return statistics.median(taken[0]), statistics.median(taken[1])


def finish(name: str, result: dict[str, Any]) -> None:
    """Prints the result, and keeps it where asked to."""
    line = {"bench": name, **{key: _short(value) for key, value in result.items()}, "machine": machine()}
    if os.environ.get("RECORD", "0") not in ("", "0"):
        record(f"make bench NAME={name}", line)
    print(json.dumps(line))


def record(command: str, line: dict[str, Any]) -> None:
    """Appends one row to docs/results.md."""
    shown = {key: value for key, value in line.items() if key not in ("bench", "machine")}
    row = result_row(datetime.now(UTC).strftime("%Y-%m-%d"), command, shown, line["machine"], code_digest())
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(row)


def result_row(date: str, command: str, shown: dict[str, Any], machine: str, code: str) -> str:
    values = json.dumps(shown)[1:-1].replace('"', "").replace("|", "/")
    return f"| {' | '.join((date, f'`{command}`', values, machine, code[:12]))} |\n"


def machine() -> str:
    """With what else it was doing."""
    found = this_machine()
    python = ".".join(map(str, sys.version_info[:2]))
    here = f"{found['cpus']} CPUs, {found['kind']}, {found['memory_gib']:.0f} GiB"
    return f"{here}, Python {python}, load {os.getloadavg()[0]:.1f}"


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
