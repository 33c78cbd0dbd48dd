"""The output of a box in which tests ran, and its parsing. No part of the output can be trusted alone, because the code
under test may have written it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

OUTCOMES = frozenset(("passed", "failed", "error", "skipped", "xfailed", "xpassed"))


@dataclass(frozen=True, slots=True)
class RunOutput:
    nonce: str
    code: int
    """Exit code as reported by pid 1 of the box."""
    rows: bytes = b""
    """All that was written to the descriptor for result rows. Each line should hold the run's nonce, a space and one
    row as JSON; `read_rows` checks that."""
    report: bytes | None = None
    """Contents of the report file that the runner wrote at its end; None if there is no such file."""
    limit: str = ""
    """Name of the resource limit that ended the run, as in ExecResult; empty if none did."""
    starved: bool = False
    """Whether the wall clock expired because the host did not give the run its fair share of CPU time."""
    log: bytes = b""
    seconds: float = 0.0


@dataclass(slots=True)
class Rows:
    ready: bool = False
    broken: str = ""
    """Reason why the test runner cannot run any tests in this box; empty if it can."""
    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """Line at which a test failed, counted from the start of its function, where it is known."""
    values: dict[str, dict[str, list[object]]] = field(default_factory=dict)
    """Values reported for comparisons outside the box: by test, then by the comparison's key. The values of a test
    precede its row; those after the last row are under an empty test name."""
    end: int | None = None
    """Exit code that the runner wrote in its last row. None if this row is missing, because the run was cut short."""
    memory_bytes: int = 0
    """Peak memory of the runner's process, as the run itself reports it."""
    tampered: str = ""
    """What is wrong with the first row that no runner writes; empty if there is none. Later rows are ignored."""

    def reported(self, test: str, key: str) -> list[object]:
        """Return the values that a test reported under a key. With Node, all values come after the last row and name no
        test. So if the test has none, return those stored without a name."""
        return self.values.get(test, {}).get(key) or self.values.get("", {}).get(key, [])


def read_rows(data: bytes, nonce: str) -> Rows:
    """Stop at the first row that no runner writes. A last line without a newline was truncated and is ignored."""
    rows = Rows()
    prefix = f"{nonce} ".encode()
    for line in data.split(b"\n")[:-1]:
        if not line.startswith(prefix):
            rows.tampered = "a line without the nonce"
        else:
            try:
                rows.tampered = _take(rows, json.loads(line[len(prefix) :]))
            except (ValueError, TypeError, AttributeError, RecursionError):
                rows.tampered = "a line that is not a row"
        if rows.tampered:
            break
    return rows


def _take(rows: Rows, row: dict[str, object]) -> str:
    """Add a row to `rows`. Return what is wrong with the row, or an empty string."""
    kinds = row.keys() & {"ready", "broken", "test", "value", "end"}
    if len(kinds) != 1:
        return "a row of no kind"
    kind = kinds.pop()
    first = not (rows.ready or rows.broken)
    if rows.end is not None or first != (kind in ("ready", "broken")):
        return f"a row {kind!r} out of place"
    if kind == "ready":
        rows.ready = True
    elif kind == "broken":
        rows.broken = str(row["broken"])[:500]
    elif kind == "value":
        rows.values.setdefault("", {}).setdefault(str(row["value"]), []).append(row.get("is"))
    elif kind == "end":
        if type(row["end"]) is not int:
            return "an end without a code"
        rows.end = row["end"]
        if isinstance(memory := row.get("memory"), int):
            rows.memory_bytes = memory
    else:
        test, outcome, seconds = row["test"], row.get("outcome"), row.get("seconds", 0.0)
        if not isinstance(test, str) or outcome not in OUTCOMES or not isinstance(seconds, int | float):
            return "a row of a test that is not one"
        if test in rows.outcomes:
            return "a second row of one test"
        rows.outcomes[test], rows.seconds[test] = str(outcome), float(seconds)
        rows.values[test] = rows.values.pop("", {})
        if isinstance(line := row.get("line"), int):
            rows.places[test] = line
    return ""


def read_report(data: bytes | None, nonce: str) -> tuple[int, dict[str, str]] | None:
    """Return the exit code and the outcomes in the runner's report, or None if it is not a valid report of this run."""
    if data is None:
        return None
    try:
        found = json.loads(data)
        code, tests = found["exit"], found["tests"]
        if found["nonce"] != nonce or type(code) is not int or not isinstance(tests, dict):
            return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return code, tests
