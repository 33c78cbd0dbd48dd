"""What every benchmark shares: alternating timing, the JSON line printed last, and recording it as a row.

`make bench NAME=...` prints the result. With RECORD=1 it also appends it to docs/results/rows.jsonl, with the date,
machine, command and the digest of the measured code. `make results` draws docs/results.md from these rows.
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

ROWS = Path(__file__).resolve().parent.parent / "docs" / "results" / "rows.jsonl"


def alternating(ours: Callable[[], object], peer: Callable[[], object], *, runs: int = 3) -> tuple[float, float]:
    """Median seconds of two functions that run alternately, so that other load on the machine affects both alike."""
    taken: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + 1):
        for work, times in zip((ours, peer), taken, strict=True):
            begun = time.perf_counter()
            work()
            if run:
                times.append(time.perf_counter() - begun)
    return statistics.median(taken[0]), statistics.median(taken[1])


def finish(name: str, result: dict[str, Any]) -> None:
    """Print the result as one JSON line, and record it if the environment variable RECORD is set."""
    line = {"bench": name, **{key: _short(value) for key, value in result.items()}, "machine": machine()}
    if os.environ.get("RECORD", "0") not in ("", "0"):
        record(f"make bench NAME={name}", line)
    print(json.dumps(line))


def record(command: str, line: dict[str, Any]) -> None:
    """Append one row to docs/results/rows.jsonl."""
    shown = {key: value for key, value in line.items() if key not in ("bench", "machine")}
    row = result_row(datetime.now(UTC).strftime("%Y-%m-%d"), command, shown, line["machine"], code_digest())
    with ROWS.open("a", encoding="utf-8") as out:
        out.write(row)


def result_row(date: str, command: str, result: dict[str, Any], machine: str, code: str) -> str:
    """One line of docs/results/rows.jsonl."""
    row = {"date": date, "command": command, "result": result, "machine": machine, "code": code[:12]}
    return json.dumps(row, ensure_ascii=False) + "\n"


def machine() -> str:
    """One line about the machine: CPUs, their model, memory, Python version and load average."""
    found = this_machine()
    python = ".".join(map(str, sys.version_info[:2]))
    here = f"{found['cpus']} CPUs, {found['kind']}, {found['memory_gib']:.0f} GiB"
    return f"{here}, Python {python}, load {os.getloadavg()[0]:.1f}"


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
