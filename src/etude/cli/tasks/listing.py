"""etude tasks list: prints one line per task below a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from etude.cli.errors import FAILED
from etude.cli.tasks.find_tasks import named_tasks
from etude.cli.tasks.wording import grading_of, verifier_name
from etude.cli.wording import count, table
from etude.tasks import Split, Task, TaskError, gated_digest, read_task
from etude.tasks.gate import stored_evidence


def list_command(folder: Path, split: str, category: str, as_json: bool) -> int:
    if split and split not in list(Split):
        raise TaskError(f"--split: expected {', '.join(Split)}, found {split!r}")
    found, unread = [], []
    for directory in named_tasks([folder]):
        try:
            found.append(read_task(directory, set(Split)))
        except TaskError as error:
            unread.append(str(error))
    shown = [t for t in found if split in ("", t.split) and category in ("", t.category)]
    if as_json:
        print(json.dumps([_row(task) for task in shown], indent=1))
    elif shown:
        rows = [_row(task) for task in shown]
        print(table([[name.upper() for name in _COLUMNS], *([row[n] for n in _COLUMNS] for row in rows)]))
    left_out = len(found) - len(shown)
    _say(count(len(shown), "task") + (f", {left_out} of another split or category" if left_out else ""))
    for problem in unread:
        _say(f"not read: {problem}")
    return FAILED if unread else 0


_COLUMNS = ("id", "category", "split", "verifier", "graded", "gate")


def _row(task: Task) -> dict[str, str]:
    return {
        "id": task.id,
        "category": task.category,
        "split": task.split.value,
        "verifier": verifier_name(task),
        "graded": grading_of(task),
        "gate": gate_of(task),
        "family": task.family,
        "directory": str(task.directory),
    }


def gate_of(task: Task) -> str:
    """Return the stored result of the task's gate, such as "passed" or "outdated"; "-" if there is none."""
    found = stored_evidence(task)
    if found is None:
        return "-"
    if found.digest != gated_digest(task):
        return "outdated"
    return "passed" if found.survived else found.outcome.value


def _say(line: str) -> None:
    print(line, file=sys.stderr)
