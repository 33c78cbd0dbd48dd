"""Run the exhaustive tests of one room, or of all, and write the results to docs/soak.md.

    soak.py [ROOM]        ROOM is a folder of tests/: sandbox, tasks, survival...

A room's row holds its last result, with the date and the digest of the tested code. Each row is written as soon as its
room is done, so after an interruption only the remaining rooms still have their old rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path

from etude.journal import code_digest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "soak.md"
HEAD = """\
# Soak

What is exhaustive runs by hand, not with every change: all modes, engines and kills, whole claims, ten tasks of every
category. `make soak` runs all of it, `make soak ROOM=sandbox` one room; the command writes this page. The last column
is the digest of the code that was tested (`etude.journal.code_digest`).

| room | passed | failed | skipped | minutes | date | code |
|---|---|---|---|---|---|---|
"""
NO_TESTS = 5
"""pytest's exit code when no test was selected."""


def rows() -> dict[str, str]:
    """The rows of the page's table, by room."""
    if not PAGE.exists():
        return {}
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {line.split("|")[1].strip(): line for line in lines[1:]}


def soak(room: str) -> bool | None:
    """Run a room's exhaustive tests and write its row. Return whether they passed; None if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "soak.xml")
        command = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
        begun = time.monotonic()
        code = subprocess.call([*command, "-m", "soak and not gpu", f"--junitxml={report}", f"tests/{room}"], cwd=ROOT)
        if code == NO_TESTS:
            return None
        if code not in (0, 1):
            raise SystemExit(code)
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    count = {key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    minutes = (time.monotonic() - begun) / 60
    cells = (room, count["tests"] - failed - count["skipped"], failed, count["skipped"], f"{minutes:.1f}")
    row = f"| {' | '.join(map(str, cells))} | {datetime.now(UTC):%Y-%m-%d} | {code_digest()[:12]} |"
    kept = rows() | {room: row}
    PAGE.write_text(HEAD + "".join(f"{kept[name]}\n" for name in sorted(kept)), encoding="utf-8")
    return failed == 0


def main(wanted: list[str]) -> int:
    rooms = sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("_"))
    if unknown := set(wanted) - set(rooms):
        print(f"soak: no folder tests/{unknown.pop()}; expected one of: {' '.join(rooms)}", file=sys.stderr)
        return 2
    results = [soak(room) for room in wanted or rooms]
    if wanted and results == [None]:
        print(f"soak: {wanted[0]} has no exhaustive tests; make test-full runs all of its tests", file=sys.stderr)
    return int(False in results)


if __name__ == "__main__":
    sys.exit(main([room for room in sys.argv[1:] if room]))
