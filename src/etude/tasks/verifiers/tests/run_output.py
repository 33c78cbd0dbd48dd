"""The output of a box in which tests ran, and its parsing. No part of the output can be trusted alone, because the code
under test may have written it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from etude.tasks.box.run_tests import MOST_TOLD
from etude.tasks.verifiers.untrusted_json import flat_table, parse_untrusted, texts_by_name

OUTCOMES = frozenset(("passed", "failed", "error", "skipped", "xfailed", "xpassed"))
LARGEST_REPORT = 8 << 20
"""Maximum bytes of the runner's report file, and of the result rows that are kept. More than twice what 10,000 tests
with long names write."""
LONGEST_ROW = 1 << 20
"""Maximum bytes of one result row. Runners write at most 64 Ki characters of a value, which JSON may make six times as
long."""
MOST_TESTS = 100_000
_LARGEST_NUMBER = 1 << 50


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
    """What is wrong with the first invalid row, which a genuine runner never writes. Empty if all rows are valid; later
    rows are ignored."""

    def reported(self, test: str, key: str) -> list[object]:
        """Return the values that a test reported under a key. With Node, all values come after the last row and name no
        test. So if the test has none, return those stored without a name."""
        return self.values.get(test, {}).get(key) or self.values.get("", {}).get(key, [])


def read_rows(data: bytes, nonce: str) -> Rows:
    """Parse result rows up to the first invalid one, which a genuine runner never writes (`Rows.tampered`). A last line
    without a newline was cut off and is ignored."""
    rows = Rows()
    prefix = f"{nonce} ".encode()
    for line in _lines(data):
        if not line.startswith(prefix):
            rows.tampered = "a line without the nonce"
        else:
            try:
                rows.tampered = _take(rows, flat_table(parse_untrusted(line[len(prefix) :], LONGEST_ROW)))
            except ValueError:
                rows.tampered = "a line that is not a row"
        if rows.tampered:
            break
    return rows


def _lines(data: bytes) -> Iterator[bytes]:
    """Yield one line after the other, since a list of all of them can take many times the memory of the data."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield data[start:end]
        start = end + 1


def _take(rows: Rows, row: Mapping[str, str | int | float | None]) -> str:
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
        told = rows.values.setdefault("", {}).setdefault(str(row["value"]), [])
        if len(told) >= MOST_TOLD:
            return f"more than {MOST_TOLD} values of one comparison"
        told.append(row.get("is"))
    elif kind == "end":
        if type(code := row["end"]) is not int or abs(code) > _LARGEST_NUMBER:
            return "an end without a code"
        rows.end = code
        if isinstance(memory := row.get("memory"), int) and 0 <= memory <= _LARGEST_NUMBER:
            rows.memory_bytes = memory
    else:
        test, outcome, seconds = row["test"], row.get("outcome"), row.get("seconds", 0.0)
        if not isinstance(test, str) or outcome not in OUTCOMES or not isinstance(seconds, int | float):
            return "a row of a test that is not one"
        if not abs(seconds) <= _LARGEST_NUMBER:  # The seconds may be NaN.
            return "a row of a test that took no time that there is"
        if test in rows.outcomes:
            return "a second row of one test"
        if len(rows.outcomes) >= MOST_TESTS:
            return f"more than {MOST_TESTS} tests"
        rows.outcomes[test], rows.seconds[test] = str(outcome), float(seconds)
        if values := rows.values.pop("", None):
            rows.values[test] = values
        if isinstance(line := row.get("line"), int) and abs(line) <= _LARGEST_NUMBER:
            rows.places[test] = line
    return ""


def read_report(data: bytes | None, nonce: str) -> tuple[int, Mapping[str, str]] | None:
    """Return the exit code and the outcomes in the runner's report, or None if it is not a valid report of this run."""
    if data is None:
        return None
    try:
        found = parse_untrusted(data, LARGEST_REPORT)
        code, tests = found["exit"], texts_by_name(found["tests"])
        ours = isinstance(found["nonce"], str) and found["nonce"] == nonce
    except (ValueError, KeyError, TypeError):
        return None
    return (code, tests) if ours and type(code) is int else None
