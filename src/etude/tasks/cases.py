"""Cases: calls of the agent's functions with their expected outcomes. Arguments and results are plain JSON values.

The verifier program in the box gets only the calls. The expected values stay outside the box and are compared there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

Value = int | float | bool | str | None | list["Value"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a function call returned or raised: the canonical JSON of the value, or the name of the exception's type."""

    value: str | None = None
    raised: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    id: str
    module: str
    function: str
    arguments: tuple[Value, ...]
    expected: str
    """Canonical JSON of the value that a correct solution returns."""


class CasesError(ValueError):
    """A cases file is malformed. The message names the field and what was expected."""


def _plain(value: object) -> bool:
    if type(value) is list:
        return all(_plain(item) for item in value)
    if type(value) is float:
        return value == value and value not in (float("inf"), float("-inf"))
    return value is None or type(value) in (int, bool, str)


def outcome_of(function: Callable[..., object], arguments: Sequence[Value]) -> Outcome:
    """Call the function. Common built-in exceptions become outcomes; others propagate. If the result is not a plain
    `Value` (an infinite float or an instance of a subclass, for example), both fields of the outcome are None."""
    try:
        value = function(*arguments)
    except (TypeError, ValueError, ArithmeticError, LookupError, NameError, AttributeError) as error:
        return Outcome(raised=type(error).__name__)
    return Outcome(json.dumps(value, ensure_ascii=True, allow_nan=False) if _plain(value) else None)


def dump_cases(cases: Sequence[Case]) -> bytes:
    lines = ",\n".join(json.dumps(asdict(case)) for case in cases)
    return f'{{"version": 1, "cases": [\n{lines}\n]}}\n'.encode()


def load_cases(data: bytes) -> tuple[Case, ...]:
    """Parse a cases file. Raises CasesError unless it holds at least one case and every id is unique."""
    try:
        document = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CasesError(f"expected JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != 1 or not isinstance(document.get("cases"), list):
        raise CasesError('expected {"version": 1, "cases": [...]}')
    cases = tuple(_case(row, place) for place, row in enumerate(document["cases"]))
    if not cases:
        raise CasesError("cases: expected at least one")
    if len({case.id for case in cases}) != len(cases):
        raise CasesError("cases: every id must be used once")
    return cases


def _case(row: object, place: int) -> Case:
    if not isinstance(row, dict):
        raise CasesError(f"cases[{place}]: expected a table")
    for key in ("id", "module", "function", "expected"):
        if not isinstance(row.get(key), str):
            raise CasesError(f"cases[{place}].{key}: expected text")
    arguments = row.get("arguments")
    if not isinstance(arguments, list) or not all(_plain(argument) for argument in arguments):
        raise CasesError(f"cases[{place}].arguments: expected a list of plain values")
    return Case(row["id"], row["module"], row["function"], tuple(arguments), row["expected"])
