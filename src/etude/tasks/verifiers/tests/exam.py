"""An exam is what one grading runs: files to place over the workspace, and the required outcome of every test.

Each exam is drawn at random, with renamed and altered tests, so test ids in the box may differ from the task's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.tasks.verifiers.tests.suite import Suite


@dataclass(frozen=True, slots=True)
class Withheld:
    """A comparison that is made outside the box. Its expected values do not enter the box."""

    key: str
    """Key under which the test in the box reports the values to compare."""
    values: tuple[object, ...]
    """The expected values, which the test must report in this order. It may report the whole sequence several times."""


@dataclass(frozen=True, slots=True)
class Exam:
    files: Mapping[str, bytes]
    tests: Mapping[str, str]
    """Tests that must pass: by their ids in the box, the task's own ids. These differ for renamed tests."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """Altered copies, which must fail: by their ids in the box, the task's own ids of the originals."""
    withheld: Mapping[str, tuple[Withheld, ...]] = field(default_factory=dict)
    """Comparisons made outside the box, whose values never enter it: by the tests' ids in the box."""
    keeper: str = ""
    """Function that tests call to report a value instead of comparing it: a global (in Python, a builtin)."""
    may_skip: frozenset[str] = frozenset()
    """The task's own ids of tests that may be skipped."""
    guess: float = 1.0
    """Probability that code which solves nothing passes by forging its results."""

    @property
    def ids(self) -> list[str]:
        return sorted({**self.tests, **self.controls})


def plain_exam(suite: Suite) -> Exam:
    return Exam(suite.files, {test: test for test in suite.expected}, may_skip=suite.may_skip)
