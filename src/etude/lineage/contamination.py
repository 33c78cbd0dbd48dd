"""Held out means held out: nothing that trains may hold a function of a dev or test task, damaged or sound.

Functions are compared by their syntax trees (`tasks/hashes.py`), so new names hide nothing. Of a held-out task whose
family is learnt, nothing that trains may hold an instance: a function with the same numbers. Of all others it may not
even hold the shape. Train tasks that break this are refused; a corpus document that does is dropped and counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from etude.corpus import Document, Gathered
from etude.journal import write_atomically
from etude.lineage.state import LineageError
from etude.tasks import Cell, Split, Task, gated_digest
from etude.tasks.hashes import Fingerprint, fingerprints
from etude.tasks.overlap import code_in, solution_files


def task_functions(task: Task) -> dict[Fingerprint, str]:
    """Every function in the task's repository, as the agent finds it and as its solutions leave it, each with where it
    stands. The test surface (check.py) is scaffolding, the same everywhere, and left out."""
    return {
        found: f"{found.name} in {path}"
        for path, versions in solution_files(task).items()
        if path.endswith(".py")
        for text in versions
        for found in fingerprints(text)
    }


def forbidden_by(task: Task) -> dict[str, str]:
    """What nothing that trains may hold because of this held-out task, and where it stands in it. A shape is equal to
    an instance only where there are no numbers, and then they say the same."""
    family_seen = task.cell is not None and task.cell.family_seen
    found = task_functions(task)
    return {one.instance if family_seen else one.shape: where for one, where in found.items()}


@dataclass(slots=True)
class _Learnt:
    """What the train tasks hold, each with one task that does."""

    functions: dict[str, Task] = field(default_factory=dict)
    families: dict[str, Task] = field(default_factory=dict)
    kinds: dict[str, Task] = field(default_factory=dict)


def require_separate(tasks: Iterable[Task], proven: Path | None = None) -> None:
    """Refuses a set of tasks whose train split shares a function with dev or test, or in which a task's cell is untrue.
    `proven` is a file that remembers the set that was found separate last, so that the same one is not looked through
    again."""
    tasks = list(tasks)
    digest = hashlib.sha256("".join(sorted(f"{_identity(task)}\n" for task in tasks)).encode()).hexdigest()
    if proven is not None and proven.is_file() and proven.read_text(encoding="utf-8") == digest:
        return
    learnt = _Learnt()
    for task in tasks:
        if task.split is Split.TRAIN:
            for one in task_functions(task):
                learnt.functions[one.shape] = learnt.functions[one.instance] = task
            learnt.families[task.family] = learnt.kinds[task.kind] = task
    for task in tasks:
        if task.split is not Split.TRAIN:
            _require_unlearnt(task, learnt)
            if task.cell is not None:
                _require_true(task, task.cell, learnt)
    if proven is not None:
        write_atomically(proven, digest.encode())


def _identity(task: Task) -> str:
    return f"{task.split} {task.cell} {task.family} {task.kind} {gated_digest(task)}"


def _require_unlearnt(task: Task, learnt: _Learnt) -> None:
    for shared, where in forbidden_by(task).items():
        if shared in learnt.functions:
            raise LineageError(
                f"the train task {learnt.functions[shared].id} holds a function of the {task.split} task {task.id} "
                f"({where}): train tasks share none with dev or test; take one of the two out"
            )


def _require_true(task: Task, cell: Cell, learnt: _Learnt) -> None:
    """What a cell calls unseen is in no train task. (A seen kind may be too rare for a small set of tasks.)"""
    for what, name, seen, others in (
        ("family", task.family, cell.family_seen, learnt.families),
        ("kind", task.kind, cell.kind_seen, learnt.kinds),
    ):
        if not seen and name in others:
            raise LineageError(
                f"the {task.split} task {task.id} says that its {what} {name!r} is unseen, and the train task "
                f"{others[name].id} is of it; take one of the two out"
            )


def without_held_out(gathered: Gathered, held_out: Iterable[Task]) -> tuple[Gathered, dict[str, int]]:
    """The corpus without documents that hold a function of these tasks, and how many were dropped, by source."""
    forbidden = set().union(*map(forbidden_by, held_out))
    dropped: Counter[str] = Counter()

    def clean(documents: list[Document]) -> list[Document]:
        kept = []
        for document in documents:
            found = [one for code in code_in(document.text) for one in fingerprints(code)]
            if any(one.shape in forbidden or one.instance in forbidden for one in found):
                dropped[document.source] += 1
            else:
                kept.append(document)
        return kept

    return Gathered(clean(gathered.train), clean(gathered.valid), gathered.provenance), dict(dropped)
