"""What came out of a box in which tests ran, and how to read the rows in it. Nothing of it is to be believed alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

OUTCOMES = frozenset(("passed", "failed", "error", "skipped", "xfailed", "xpassed"))


@dataclass(frozen=True, slots=True)
class Account:
    nonce: str
    code: int
    """As pid 1 of the box tells it."""
    rows: bytes = b""
    """From the descriptor of the rows."""
    report: bytes | None = None
    """The runner's own file, None where there is none."""
    limit: str = ""
    """The limit that ended the run, as in ExecResult."""
    starved: bool = False
    """The wall clock expired on a host that gave the run no fair share of its time."""
    log: bytes = b""
    seconds: float = 0.0


@dataclass(slots=True)
class Rows:
    ready: bool = False
    broken: str = ""
    """Why the box cannot run tests of this kind."""
    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    """At which line of its function a test failed, as far as that is known."""
    values: dict[str, dict[str, list[object]]] = field(default_factory=dict)
    """Of comparisons that are made out here: all that were reported, by the test and by key. A test's values come
    before its own row; those of no test, under an empty name, are from a runner that keeps them to the end."""
    end: int | None = None
    memory_bytes: int = 0
    """The most that the runner's process held; it is the run's own word."""
    tampered: str = ""
    """What no runner says; nothing after it counts."""

    def told(self, test: str, key: str) -> list[object]:
        return self.values.get(test, {}).get(key) or self.values.get("", {}).get(key, [])


def read_rows(data: bytes, nonce: str) -> Rows:
    """Stops at the first thing that a runner does not say. A line without its end was cut off, and is passed over."""
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
    """Enters a row; what is wrong with it, if anything."""
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
    """The code and outcomes that the runner wrote down, or None if this is not its file."""
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
