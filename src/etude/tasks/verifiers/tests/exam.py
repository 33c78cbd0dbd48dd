"""An exam is what one grading runs: files to place over the workspace, and the required outcome of every test.

Each exam is drawn at random, with renamed and altered tests, so test ids in the box may differ from the task's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.tasks.verifiers.tests.suite import Suite


@dataclass(frozen=True, slots=True)
class Withheld:
    """The comparison of one assertion, made outside the box so that the expected values do not enter the box."""

    key: str
    """Key under which the test in the box reports the values that its code computed."""
    values: tuple[object, ...]
    """The expected values, which the test must report in this order. It may report the whole sequence several times."""


@dataclass(frozen=True, slots=True)
class Exam:
    files: Mapping[str, bytes]
    tests: Mapping[str, str]
    """Tests that must pass. Maps each test's id in the box to the task's own id of it, which differs if the exam
    renamed the test."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """Copies of tests that expect a wrong value, and so must fail. Maps each copy's id in the box to the task's own id
    of the original."""
    withheld: Mapping[str, tuple[Withheld, ...]] = field(default_factory=dict)
    """For each test, by its id in the box, the comparisons that are made outside the box, so that the expected values
    never enter it."""
    keeper: str = ""
    """Name of the global function (in Python, a builtin) that tests call to report a value, so that it is compared
    outside the box."""
    may_skip: frozenset[str] = frozenset()
    """The task's own ids of tests that may be skipped."""
    guess: float = 1.0
    """Probability that code which solves nothing passes this exam by forging results. For that it must guess the
    withheld values, and which tests are altered copies. 1.0 if the exam hides nothing."""

    @property
    def ids(self) -> list[str]:
        return sorted({**self.tests, **self.controls})


def plain_exam(suite: Suite) -> Exam:
    return Exam(suite.files, {test: test for test in suite.expected}, may_skip=suite.may_skip)
