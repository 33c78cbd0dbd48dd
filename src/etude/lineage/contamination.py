"""Held out means held out: nothing that trains may hold a function of a dev or test task, damaged or sound.

Functions are compared by the shape of their syntax tree (`tasks/hashes.py`), so new names and numbers hide nothing.
Train tasks must share none with dev and test: that is refused. A corpus document that does is dropped and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from etude.corpus import Document, Gathered
from etude.lineage.state import LineageError
from etude.tasks import Split, Task, apply_diff, function_hashes, is_protected, read_files, reference_diff

_NUMBERED = re.compile(r"^\d+ (.*)$")


def task_hashes(tasks: Iterable[Task]) -> set[str]:
    """Of every function in the tasks' repositories, as the agent finds it and as the reference leaves it. The test
    surface (check.py) is scaffolding, the same everywhere, and left out."""
    found: set[str] = set()
    for task in tasks:
        files = {name: data.decode("utf-8", "replace") for name, data in read_files(task.directory).items()}
        for version in (files, apply_diff(files, reference_diff(task))):
            for name, text in version.items():
                if name.endswith(".py") and not is_protected(name):
                    found |= function_hashes(text)
    return found


def require_separate(tasks: Iterable[Task]) -> None:
    """Refuses a set of tasks whose train split shares a function with dev or test."""
    by_split: dict[bool, list[Task]] = {True: [], False: []}
    for task in tasks:
        by_split[task.split is Split.TRAIN].append(task)
    if shared := task_hashes(by_split[True]) & task_hashes(by_split[False]):
        raise LineageError(
            f"{len(shared)} functions of train tasks also stand in dev or test tasks: the source is broken"
        )


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


def code_in(text: str) -> Iterator[str]:
    """Everything in a document that may be a module: the whole, and each numbered listing without its numbers."""
    yield text
    listing: list[str] = []
    for line in [*text.split("\n"), ""]:
        if match := _NUMBERED.match(line):
            listing.append(match[1])
        elif listing:
            yield "\n".join(listing)
            listing = []
