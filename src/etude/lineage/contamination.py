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
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from etude.corpus import Document
from etude.journal import write_atomically
from etude.lineage.state import LineageError
from etude.tasks import Cell, Split, Task, gated_digest
from etude.tasks.directory import REPOSITORY
from etude.tasks.hashes import Fingerprint, fingerprints
from etude.tasks.overlap import Item, code_in, solution_files
from etude.tasks.overlap.items import Print

_OURS = ("stdlib", "folder", "generated")
"""Sources of the corpus that are not the user's own, or were made from train tasks."""


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


@dataclass(frozen=True, slots=True)
class TaskCode:
    """Tells which documents of the corpus hold code of a task (see `etude.corpus.TaskTexts`). No document may hold
    a function of a held-out task. Documents of the user's own sources may hold no solution of any task either: RL would
    only ask for what the model has read."""

    held_out: frozenset[str]
    """Hashes of functions (see `forbidden_by`)."""
    solutions: frozenset[Print]

    @classmethod
    def of(cls, held_out: Iterable[Task], every: Iterable[Task]) -> TaskCode:
        """Collect the functions of held-out tasks, and the solutions of every task."""
        return cls(frozenset().union(*map(forbidden_by, held_out)), frozenset().union(*map(solution_prints, every)))

    @property
    def identity(self) -> str:
        return hashlib.sha256(repr((sorted(self.held_out), sorted(self.solutions))).encode()).hexdigest()

    def __call__(self, document: Document) -> bool:
        if self.held_out:
            found = (one for code in code_in(document.text) for one in fingerprints(code))
            if any(one.shape in self.held_out or one.instance in self.held_out for one in found):
                return True
        if not self.solutions or document.source in _OURS:
            return False
        item = Item(document.name)
        item.add_file(document.name, document.text)
        return not self.solutions.isdisjoint(item.prints)


def solution_prints(task: Task) -> set[Print]:
    """Return the prints of a task's instruction, and of what its solutions add to the repository's code. The rest of
    that code may be learnt: it may be the user's own repository."""
    whole = Item(task.id)
    whole.add_prose(task.instruction)
    prints = set(whole.prints)
    for path, versions in solution_files(task).items():
        was_there = (task.directory / REPOSITORY / path).is_file()
        before, after = Item(path), Item(path)
        for text in versions[:was_there]:
            before.add_file(path, text)
        for text in versions[was_there:]:
            after.add_file(path, text)
        prints |= after.prints.keys() - before.prints.keys()
    return {mark for mark in prints if mark[0] != "instance"}
