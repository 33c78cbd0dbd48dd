"""Print the slowest tests of the last `make test` and `make test-full`, and fail if one is over its time budget.

    test_times.py [--worst 20] [--slack 1.0]

A test's seconds include its set-up and tear-down. A module's or session's fixture counts for the first test that uses
it. The budgets are for two idle cores; `--slack 2` doubles them for a slower or busy machine.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

BUDGETS = {"test": 20.0, "test-full": 90.0}
"""Most seconds for a single test, by the make target that ran it."""


def times(report: Path) -> list[tuple[float, str]]:
    """Seconds and id of each test in a junit report, the slowest first."""
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return sorted(
        ((float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}") for case in cases), reverse=True
    )


def main(folder: Path, worst: int, slack: float) -> int:
    reports = {target: folder / f"{target}.xml" for target in BUDGETS}
    found = {target: times(report) for target, report in reports.items() if report.exists()}
    if not found:
        print("test-times: no junit report found; run make test or make test-full first", file=sys.stderr)
        return 2
    over = 0
    for target, rows in found.items():
        budget = BUDGETS[target] * slack
        print(f"{target}: {len(rows):,} tests, {sum(seconds for seconds, _ in rows):,.0f} s, at most {budget:g} s each")
        for seconds, name in rows[:worst]:
            print(f"  {seconds:7.1f} s{' OVER' if seconds > budget else '':5} {name}")
        over += sum(seconds > budget for seconds, _ in rows)
    if over:
        print(f"test-times: {over} over budget: make them faster, or mark them `soak` if exhaustive", file=sys.stderr)
    return int(over > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path(".pytest_cache"), help="folder of the junit reports (default .pytest_cache)"
    )
    parser.add_argument("--worst", type=int, default=20, help="number of tests to print per target (default 20)")
    parser.add_argument(
        "--slack", type=float, default=1.0, help="factor for the budgets on a slow or busy machine (default 1)"
    )
    told = parser.parse_args()
    sys.exit(main(told.folder, told.worst, told.slack))
