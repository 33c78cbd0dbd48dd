"""Draw docs/results.md from docs/results/rows.jsonl: the latest figure of each benchmark, its target and its peer.

    make results

benchmarks/results.toml lists the figures to show and their targets; the rows hold all others. A figure that was
recorded more than once gets a small plot of its history in docs/results/.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from _report import ROWS

SHOWN = Path(__file__).with_name("results.toml")
PAGE = ROWS.parent.parent / "results.md"
HEAD = """\
# Results

The latest recorded figure of each benchmark. `make bench NAME=... RECORD=1` appends to
[results/rows.jsonl](results/rows.jsonl) what it measured, with the date, the command, the machine and the digest of the
code; nobody writes a row by hand. `make results` draws this page from the rows. What each benchmark does and leaves out
is in [benchmarks.md](benchmarks.md), what the recipe claims to show in [claims.md](claims.md).

Machines differ, and some were busy: compare ratios to a peer, which ran beside it in the same run, rather than seconds.
A history has one point for each recorded row, oldest first, whatever machine measured it.

| benchmark | figure | latest | target | peer | history | date, machine |
|---|---|---|---|---|---|---|
"""
WIDTH, HEIGHT, EDGE = 90, 20, 3


def figure(result: dict[str, Any], key: str) -> float | None:
    """Return the number at a dotted key, or None if the row has none, being older than the figure."""
    found: Any = result
    for part in key.split("."):
        if isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            return None
    return float(found) if isinstance(found, int | float) else None


def sparkline(values: list[float]) -> str:
    """Return an SVG with one line through the values, its last point marked."""
    low, high = min(values), max(values)
    step, span = (WIDTH - 2 * EDGE) / (len(values) - 1), high - low or 1.0
    points = [
        (EDGE + at * step, HEIGHT - EDGE - (value - low) / span * (HEIGHT - 2 * EDGE))
        for at, value in enumerate(values)
    ]
    line, (x, y) = " ".join(f"{x:.1f},{y:.1f}" for x, y in points), points[-1]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="#4878a8" stroke-width="1.5"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="#c44e52"/></svg>\n'
    )


def page(rows: list[dict[str, Any]], shown: dict[str, Any], pictures: Path) -> str:
    """Return the text of docs/results.md; writes the plots it links to into `pictures`."""
    lines = []
    for bench, about in shown.items():
        only = about.get("only", {}).items()
        ours = [
            row
            for row in rows
            if row["command"] == f"make bench NAME={bench}"
            and all(row["result"].get(key) == value for key, value in only)
        ]
        for number, asked in enumerate(about["figures"]):
            measured = [(row, value) for row in ours if (value := figure(row["result"], asked["key"])) is not None]
            target = f"{'≤' if asked['better'] == 'smaller' else '≥'} {asked['target']:,}" if "target" in asked else ""
            if measured:
                row, latest = measured[-1]
                where = f"{row['date']}, {row['machine'].partition(', load')[0]}"
                value = f"{latest:,.4g}" if abs(latest) < 1000 else f"{latest:,.0f}"
            else:
                where, value = "", "not recorded"
            history = ""
            if len(measured) > 1:
                picture = pictures / f"{bench}-{asked['key'].replace('.', '-')}.svg"
                picture.write_text(sparkline([value for _, value in measured]), encoding="utf-8")
                history = f"![{len(measured)} rows](results/{picture.name})"
            first = f"`{bench}`: {about['what']}" if number == 0 else ""
            peer = about.get("peer", "") if number == 0 else ""
            lines.append(f"| {first} | {asked['name']} | {value} | {target} | {peer} | {history} | {where} |\n")
    return HEAD + "".join(lines)


def main() -> None:
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    shown = tomllib.loads(SHOWN.read_text(encoding="utf-8"))
    PAGE.write_text(page(rows, shown, ROWS.parent), encoding="utf-8")
    print(f"{PAGE.relative_to(PAGE.parents[1])}: {len(rows)} rows")


if __name__ == "__main__":
    main()
