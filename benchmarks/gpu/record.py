"""Records the output of `make gpu`, from this or another machine: appends each row of its last line to
docs/results/rows.jsonl."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from _report import ROWS, result_row


class NoResults(Exception):
    """The file is not the output of `make gpu` on a GPU."""


def rows_of(printed: str) -> list[str]:
    lines: list[dict[str, Any]] = []
    for line in filter(str.strip, printed.splitlines()):
        try:
            read = json.loads(line)
        except json.JSONDecodeError as error:
            raise NoResults(f"expected JSON lines, but a line is no JSON: {line[:60]!r}") from error
        if not isinstance(read, dict):
            raise NoResults(f"expected JSON objects, but a line is no JSON object: {line[:60]!r}")
        lines.append(read)
    if not lines or not {"device", "date", "code"} <= lines[0].keys() or "rows" not in lines[-1]:
        raise NoResults("expected a first line with the device and a last line with rows; give the whole output")
    first, last = lines[0], lines[-1]
    if last["gpu"] is None:
        raise NoResults("nothing was measured on a GPU; run `make gpu` on a machine with one")
    machine = f"{first['device']}, torch {first['torch']}, CUDA {first['cuda']}"
    whole = {key: last[key] for key in ("checks", "failed", "tokens_per_second")}
    return [result_row(first["date"], "make gpu", row, machine, first["code"]) for row in (whole, *last["rows"])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("printed", type=Path, help="file with the whole output of `make gpu`")
    parser.add_argument(
        "--results", type=Path, default=ROWS, help="file to append the rows to (default docs/results/rows.jsonl)"
    )
    asked = parser.parse_args()
    try:
        rows = rows_of(asked.printed.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NoResults) as error:
        print(f"gpu-record: {asked.printed}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 2
    with asked.results.open("a", encoding="utf-8") as out:
        out.writelines(rows)
    print(f"{len(rows)} rows appended to {asked.results}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
