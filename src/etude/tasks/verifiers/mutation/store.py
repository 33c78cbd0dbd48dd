"""Stores the mutants of a task in tests/mutants.json, which no agent sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from etude.tasks.task import TaskError
from etude.tasks.verifiers.mutation.mutants import Mutant

FILE = "tests/mutants.json"


def dump_mutants(mutants: Sequence[Mutant]) -> bytes:
    return (json.dumps({"mutants": [asdict(mutant) for mutant in mutants]}, indent=1) + "\n").encode()


def load_mutants(path: Path) -> tuple[Mutant, ...]:
    """Load the mutants of a task from its JSON file. Raises a TaskError that names what is missing or wrong."""
    try:
        rows = json.loads(path.read_bytes())["mutants"]
        mutants = tuple(Mutant(row["path"], row["line"], row["fault"], row["source"]) for row in rows)
    except OSError as error:
        raise TaskError(f"{path}: expected a file: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TaskError(f'{path}: expected {{"mutants": [{{"path", "line", "fault", "source"}}]}}: {error}') from error
    wrong = [m for m in mutants if not isinstance(m.line, int) or not all(map(_text, (m.path, m.fault, m.source)))]
    if wrong or not mutants:
        raise TaskError(f"{path}: mutants: expected at least one, each with a line number and three texts")
    return mutants


def _text(value: object) -> bool:
    return isinstance(value, str)
