"""Held out means held out: nothing that trains may hold a function of a dev or test task, damaged or sound.

Functions are compared by the shape of their syntax tree (`tasks/hashes.py`), so new names and numbers hide nothing.
Train tasks must share none with dev and test: that is refused. A corpus document that does is dropped and counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from etude.corpus import Document, Gathered
from etude.journal import write_atomically
from etude.lineage.state import LineageError
from etude.tasks import Split, Task, function_hashes, gated_digest
from etude.tasks.hashes import named_hashes
from etude.tasks.overlap import code_in, solution_files


def task_functions(task: Task) -> dict[str, str]:
    """The hashes of every function in the task's repository, as the agent finds it and as its solutions leave it, each
    with where it stands. The test surface (check.py) is scaffolding, the same everywhere, and left out."""
    return {
        digest: f"{name} in {path}"
        for path, versions in solution_files(task).items()
        if path.endswith(".py")
        for text in versions
        for name, digest in named_hashes(text)
    }


def task_hashes(tasks: Iterable[Task]) -> set[str]:
    return set().union(*map(task_functions, tasks))


def require_separate(tasks: Iterable[Task], proven: Path | None = None) -> None:
    """Refuses a set of tasks whose train split shares a function with dev or test. `proven` is a file that remembers
    the set that was found separate last, so that the same one is not looked through again."""
    tasks = list(tasks)
    digest = hashlib.sha256("".join(sorted(f"{t.split} {gated_digest(t)}\n" for t in tasks)).encode()).hexdigest()
    if proven is not None and proven.is_file() and proven.read_text(encoding="utf-8") == digest:
        return
    learnt: dict[str, Task] = {}
    for task in tasks:
        if task.split is Split.TRAIN:
            learnt.update(dict.fromkeys(task_functions(task), task))
    for task in tasks:
        if task.split is not Split.TRAIN:
            for shared, where in task_functions(task).items():
                if shared in learnt:
                    raise LineageError(
                        f"the train task {learnt[shared].id} holds a function of the {task.split} task {task.id} "
                        f"({where}): train tasks share none with dev or test; take one of the two out"
                    )
    if proven is not None:
        write_atomically(proven, digest.encode())


def without_held_out(gathered: Gathered, held_out: Iterable[Task]) -> tuple[Gathered, dict[str, int]]:
    """The corpus without documents that hold a function of these tasks, and how many were dropped, by source."""
    forbidden = task_hashes(held_out)
    dropped: Counter[str] = Counter()

    def clean(documents: list[Document]) -> list[Document]:
        kept = []
        for document in documents:
            if any(function_hashes(code) & forbidden for code in code_in(document.text)):
                dropped[document.source] += 1
            else:
                kept.append(document)
        return kept

    return Gathered(clean(gathered.train), clean(gathered.valid), gathered.provenance), dict(dropped)
