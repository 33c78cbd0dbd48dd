"""What one grading asks: the files that are laid over the workspace, and what must become of every test in them.

Ids in the box are not always the task's own: whoever draws an exam may rename tests, and put others among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.tasks.verifiers.tests.suite import Suite


@dataclass(frozen=True, slots=True)
class Withheld:
    """A comparison that is made out here: the box is not told what is expected."""

    key: str
    values: tuple[object, ...]
    """What must be told, one after the other, and from the start again: in whole rounds."""


@dataclass(frozen=True, slots=True)
class Exam:
    files: Mapping[str, bytes]
    tests: Mapping[str, str]
    """What must pass: id in the box -> the task's own id."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """What must fail: id in the box -> the task's own id of the test that it is an altered copy of."""
    withheld: Mapping[str, tuple[Withheld, ...]] = field(default_factory=dict)
    """By the id in the box of the test that they belong to."""
    keeper: str = ""
    """The builtin that withheld comparisons call in the box."""
    may_skip: frozenset[str] = frozenset()
    """Of the task's own ids."""
    guess: float = 1.0
    """The chance of code that solves nothing, but forges whatever it likes, to be given a pass."""

    @property
    def ids(self) -> list[str]:
        return sorted({**self.tests, **self.controls})


def plain_exam(suite: Suite) -> Exam:
    """The suite as it is."""
    return Exam(suite.files, {test: test for test in suite.expected}, may_skip=suite.may_skip)
