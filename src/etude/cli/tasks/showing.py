"""etude tasks show: prints one task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from etude.cli.tasks.find_tasks import one_task
from etude.cli.tasks.listing import gate_of
from etude.cli.tasks.wording import grading_of, verifier_name
from etude.cli.wording import count, table
from etude.tasks import Task, TaskError
from etude.tasks.check import check_task
from etude.tasks.directory import list_files
from etude.tasks.environment.source import source_of
from etude.tasks.gate import stored_evidence

_MOST = 30
"""Maximum number of files that are printed per folder."""


def show_command(path: Path, store: Path) -> int:
    task = one_task(path)
    print(f"{task.id}\n{_line(task)}")
    for title, lines in (
        ("Instruction", task.instruction.splitlines()),
        ("Environment", _environment(task)),
        ("Files", _files(task)),
        ("Limits", _table(asdict(task.limits))),
        ("Verifier", _verifier(task, store)),
        ("Provenance", _table(task.provenance)),
        ("Gate", _gate(task)),
        ("Notes", _notes(task)),
    ):
        if found := list(lines):
            print(f"\n{title}")
            print("\n".join(f"  {line}".rstrip() for line in found))
    return 0


def _line(task: Task) -> str:
    kind = f" ({task.kind})" if task.kind else ""
    return f"{task.category}{kind}, for {task.split}, of the family {task.family}"


def _environment(task: Task) -> Iterator[str]:
    try:
        source = source_of(task)
    except TaskError as error:
        yield str(error)
        return
    said = {
        "files": f"{count(len(source.files), 'file')} over the host's base",
        "dockerfile": "built from environment/Dockerfile",
        "pulled": f"the image {source.reference}",
        "archive": f"the archive {source.place.name}",
    }
    yield said[source.kind] + (f", at {source.workdir}" if source.workdir else "")


def _files(task: Task) -> Iterator[str]:
    for folder in ("environment", "tests", "solution", "steps"):
        if not (task.directory / folder).is_dir():
            continue
        found = list_files(task.directory, folder)
        for name, path in list(found.items())[:_MOST]:
            yield f"{path.stat().st_size:>9,}  {folder}/{name}"
        if len(found) > _MOST:
            yield f"{'':>9}  {folder}/...  ({count(len(found) - _MOST, 'file')} more)"


def _verifier(task: Task, store: Path) -> Iterator[str]:
    yield f"{verifier_name(task)}, {grading_of(task, store)}"
    yield from _table({name: value for name, value in task.verifier.items() if name != "type"})


def _table(values: Mapping[str, object]) -> Iterator[str]:
    width = max(map(len, values), default=0)
    for name, value in values.items():
        shown = f"{value:g}" if isinstance(value, float) else value
        yield f"{name.ljust(width)}  {shown if isinstance(shown, str) else json.dumps(shown, default=str)}"


def _gate(task: Task) -> Iterator[str]:
    found = stored_evidence(task)
    if found is None:
        yield "not gated: `etude tasks check --gate` runs it"
        return
    yield gate_of(task)
    rows = [(run.what, run.judgement.value, f"{run.seconds:.2f} s", run.conditions) for run in found.runs]
    yield from table(rows).splitlines()
    yield from found.reasons
    if found.limits:
        yield "limits from now on: " + ", ".join(f"{name} {value:g}" for name, value in found.limits.items())


def _notes(task: Task) -> Iterator[str]:
    checked = check_task(task.directory)
    yield from (f"mistake: {mistake}" for mistake in checked.mistakes)
    yield from checked.notes
