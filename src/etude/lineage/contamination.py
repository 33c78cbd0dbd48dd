"""Contamination checks: no training data may contain a function of a dev or test task, neither its broken nor its
repaired version.

Functions are compared by hashes of their syntax trees (`tasks/hashes.py`), so renaming hides nothing. How strict the
check is depends on a held-out task's family. If train tasks share the family, training data must not contain the same
function with the same number literals (an equal "instance" hash). Otherwise it must not contain the same function,
whatever its number literals are (an equal "shape" hash). A train task that breaks the rule is refused; a corpus
document that breaks it is dropped and counted.
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
    """Map the fingerprint of every function in the task's repository, before and after each solution, to its name and
    file. The tests (check.py) are left out, since they are the same in every task."""
    return {
        found: f"{found.name} in {path}"
        for path, versions in solution_files(task).items()
        if path.endswith(".py")
        for text in versions
        for found in fingerprints(text)
    }


def forbidden_by(task: Task) -> dict[str, str]:
    """Return the hashes of this held-out task's functions, which training data may not contain, each with the
    function's name and file. If training uses the task's family (see `Task.cell`), these are instance hashes (with
    number literals), else shape hashes (without). A set may mix both sorts: the two hashes of a function are equal only
    if it has no number literals, and then both forbid the same."""
    family_seen = task.cell is not None and task.cell.family_seen
    found = task_functions(task)
    return {one.instance if family_seen else one.shape: where for one, where in found.items()}


@dataclass(slots=True)
class _Learnt:
    """Function hashes, families and kinds of the train tasks, each mapped to one task that has it."""

    functions: dict[str, Task] = field(default_factory=dict)
    families: dict[str, Task] = field(default_factory=dict)
    kinds: dict[str, Task] = field(default_factory=dict)


def require_separate(tasks: Iterable[Task], proven: Path | None = None) -> None:
    """Raise LineageError if the train split shares a function with dev or test, or if a held-out task is wrongly marked
    as having a family or kind that training has not seen. `proven` is a file with the digest of the last set of tasks
    that passed; an unchanged set is not checked again."""
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
                f"({where}): train tasks must share none with dev or test; remove one of the two tasks"
            )


def _require_true(task: Task, cell: Cell, learnt: _Learnt) -> None:
    """Raise LineageError if `cell` says that training has not seen the task's family or kind, but a train task has it.
    The reverse is not checked: a small set of train tasks may lack a rare kind that `cell` counts as seen."""
    for what, name, seen, others in (
        ("family", task.family, cell.family_seen, learnt.families),
        ("kind", task.kind, cell.kind_seen, learnt.kinds),
    ):
        if not seen and name in others:
            raise LineageError(
                f"the {task.split} task {task.id} is marked as having an unseen {what}, {name!r}, but the train task "
                f"{others[name].id} has it too; remove one of the two tasks"
            )


def without_held_out(gathered: Gathered, held_out: Iterable[Task]) -> tuple[Gathered, dict[str, int]]:
    """Return the corpus without the documents that contain a function forbidden by these held-out tasks, and the number
    of dropped documents by source."""
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
