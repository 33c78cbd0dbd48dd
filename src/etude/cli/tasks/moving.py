"""etude tasks import and export: converts tasks and predictions from and to other formats."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from etude.cli.errors import FAILED, MISTAKE
from etude.cli.tasks.find_tasks import named_tasks
from etude.cli.wording import count
from etude.journal import ProgressLine
from etude.tasks import Task, TaskError
from etude.tasks.directory import find_tasks
from etude.tasks.formats.folders import export_harbor, import_harbor, read_all
from etude.tasks.formats.swebench import export_predictions, import_rows, predictions_of
from etude.trace import read_traces


def import_command(source: Path, dest: Path, clones: Path | None, image: str, python: str, only: list[str]) -> int:
    if not source.exists():
        raise TaskError(f"{source}: expected Harbor tasks or SWE-bench rows, but this path does not exist")
    if source.is_file() or (source / "sweb.yaml").is_file():
        with ProgressLine("import", 0, unit="rows") as line:

            def shown(done: int, total: int) -> None:
                line.total = total
                line.update(done)

            found = import_rows(source, dest, clones=clones, image=image, python=python, only=only, on_progress=shown)
        return _told(found.tasks, found.refused)
    directories = find_tasks(source)
    if not directories:
        raise TaskError(f"{source}: expected Harbor tasks (a task.toml each) or SWE-bench rows, found none")
    with ProgressLine("import", len(directories), unit="tasks") as line:
        tasks = import_harbor(source, dest, on_progress=lambda done, _: line.update(done))
    return _told(tasks, {})


def export_command(paths: list[Path], dest: Path, model: str) -> int:
    if dest.suffix in (".json", ".jsonl"):
        if not model:
            raise TaskError(f"{dest}: a file of predictions needs --model NAME: whose predictions are they?")
        traces = (trace for path in paths for trace in read_traces(path))
        made = export_predictions(predictions_of(traces, model), dest)
        print(dest)
        print(count(made, "prediction"), file=sys.stderr)
        return 0
    tasks = read_all(named_tasks(paths))
    with ProgressLine("export", len(tasks), unit="tasks") as line:
        found = export_harbor(tasks, dest, on_progress=lambda done, _: line.update(done))
    for path in found.written:
        print(path)
    for reason in found.refused:
        print(f"refused: {reason}", file=sys.stderr)
    return MISTAKE if found.refused else 0


def _told(tasks: Sequence[Task], refused: Mapping[str, str]) -> int:
    for task in tasks:
        print(task.directory)
    splits = Counter(task.split for task in tasks)
    said = ", ".join(f"{number} for {split}" for split, number in sorted(splits.items()))
    print(f"{count(len(tasks), 'task')}{said and ': ' + said}", file=sys.stderr)
    for name, reason in refused.items():
        print(f"refused: {name}: {reason}", file=sys.stderr)
    return FAILED if refused else 0
