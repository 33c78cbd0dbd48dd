"""The items that are compared (a task's file, a document, a trace) and their prints, which are hashes of pieces of
content.

There are five kinds of print: a task's id; a Python function's syntax tree without numbers; the same with numbers (an
instance); a sequence of code tokens in any language; and thirteen consecutive words of prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources

from etude.tasks.diff import DiffError, apply_diff, parse_diff
from etude.tasks.directory import REPOSITORY, read_files
from etude.tasks.gate import other_diffs, reference_diff
from etude.tasks.hashes import fingerprints
from etude.tasks.overlap.tokens import digest_of, windows
from etude.tasks.protected_files import is_protected
from etude.tasks.task import Task, TaskError

WORDS = 13
SMALLEST = 24
"""Smallest function to compare, in nodes of its syntax tree. Smaller ones, such as accessors, occur in any two
programs."""
_PROSE = re.compile(r".*\.(md|rst|txt)")
_CODE = re.compile(r".*\.(c|cc|cpp|cs|go|h|hpp|java|js|cjs|mjs|jsx|kt|lua|php|pl|rb|rs|scala|sh|sql|swift|ts|tsx)")
_WORD = re.compile(r"\w+")
_NUMBERED = re.compile(r"^\d+ (.*)$")
Print = tuple[str, int]
"""Stands for one piece of content: its kind (such as "function") and its hash."""


@dataclass(slots=True)
class Item:
    where: str
    prints: dict[Print, str] = field(default_factory=dict)
    """Maps each print to a label for reports: the task's id, a function's name, a line number, or the words themselves.
    """

    def add_task(self, name: str) -> None:
        self.prints["task", digest_of(name)] = name

    def add_functions(self, source: str) -> bool:
        """Add the functions of a Python module. Return whether any was large enough to compare."""
        found = fingerprints(source, smallest=SMALLEST)
        self.prints.update({("function", int(one.shape, 16)): one.name for one in found})
        self.prints.update({("instance", int(one.instance, 16)): one.name for one in found})
        return bool(found)

    def add_code(self, source: str) -> None:
        self.prints.update({("code", digest): f"line {line}" for digest, line in windows(source)})

    def add_prose(self, text: str) -> None:
        words = _WORD.findall(text.casefold())
        for start in range(len(words) - WORDS + 1):
            row = " ".join(words[start : start + WORDS])
            self.prints["text", digest_of(row)] = row

    def add_file(self, path: str, text: str) -> None:
        if path.endswith(".py"):
            self.add_functions(text)
        elif _PROSE.fullmatch(path):
            self.add_prose(text)
        elif _CODE.fullmatch(path):
            self.add_code(text)


def item_of_text(where: str, text: str) -> Item:
    """Return the item of a text that may be prose, code, or both: a document of a corpus, or a message."""
    item = Item(where)
    programs = [code for code in code_in(text) if item.add_functions(code)]
    if not programs:
        item.add_code(text)
    item.add_prose(text)
    return item


def code_in(text: str) -> Iterator[str]:
    """Yield what may be Python modules: the whole text, and each listing of numbered lines without the numbers."""
    yield text
    listing: list[str] = []
    for line in [*text.split("\n"), ""]:
        if match := _NUMBERED.match(line):
            listing.append(match[1])
        elif listing:
            yield "\n".join(listing)
            listing = []


def added_lines(diff: str) -> dict[str, str]:
    """Return the new side of a diff's hunks (context and added lines), by path; nothing if the diff is malformed."""
    try:
        patches = parse_diff(diff)
    except DiffError:
        return {}
    return {patch.after: "".join(line for hunk in patch.hunks for line in hunk.new) for patch in patches if patch.after}


def items_of_task(task: Task) -> Iterator[Item]:
    """Yield items for a task's instruction, each file as the agent finds it and as each solution leaves it, and the
    hidden tests.

    Visible tests and their configuration are left out, because many tasks share them.
    """
    whole = Item(task.id)
    whole.add_task(task.id)
    whole.add_prose(task.instruction)
    yield whole
    for path, versions in solution_files(task).items():
        item = Item(f"{task.id}: {path}")
        for text in versions:
            item.add_file(path, text)
        yield item
    if (task.directory / "tests").is_dir():
        ours = {path.name for path in resources.files("etude.tasks.box").iterdir()}
        for path, data in read_files(task.directory, "tests").items():
            if path in ours:
                continue  # Étude's own helpers are the same in every task.
            item = Item(f"{task.id}: tests/{path}")
            item.add_file(path, data.decode("utf-8", "replace"))
            yield item


def solution_files(task: Task) -> dict[str, list[str]]:
    """Return the versions of each workspace file, by path: as the agent finds it, and as each solution leaves it. Tests
    and their configuration are left out. The files of a built environment cannot be read, so their versions hold only
    the new side of the solutions' diffs."""
    before: dict[str, str] = {}
    if (task.directory / REPOSITORY).is_dir():
        before = {path: data.decode("utf-8", "replace") for path, data in read_files(task.directory).items()}
    found = {path: [text] for path, text in before.items() if not is_protected(path)}
    for diff in _solutions(task):
        try:
            after = apply_diff(before, diff)
        except DiffError:
            after = added_lines(diff)
        for path, text in after.items():
            if not is_protected(path) and before.get(path) != text:
                found.setdefault(path, []).append(text)
    return found


def _solutions(task: Task) -> Iterable[str]:
    try:
        return [reference_diff(task), *other_diffs(task).values()]
    except TaskError:
        return []
