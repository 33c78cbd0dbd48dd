"""An exam is what one grading runs: files to place over the workspace, and the required outcome of every test.

Test ids in the box may differ from the task's own: drawing an exam renames tests and adds others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.tasks.verifiers.tests.suite import Suite


@dataclass(frozen=True, slots=True)
class Withheld:
    """A comparison made outside the box, which is not given the expected values."""

    key: str
    values: tuple[object, ...]
    """The values that the test must report in this order, repeatedly and in complete rounds."""


@dataclass(frozen=True, slots=True)
class Exam:
    files: Mapping[str, bytes]
    tests: Mapping[str, str]
    """Tests that must pass: id in the box -> the task's own id."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """Tests that must fail: id in the box -> the task's own id of the test that it is an altered copy of."""
    withheld: Mapping[str, tuple[Withheld, ...]] = field(default_factory=dict)
    """Withheld comparisons, by the id in the box of their test."""
    keeper: str = ""
    """Name of the builtin that withheld comparisons call in the box."""
    may_skip: frozenset[str] = frozenset()
    """The task's own ids of tests that may be skipped."""
    guess: float = 1.0
    """Probability of a pass for code that solves nothing but forges its results."""

    @property
    def ids(self) -> list[str]:
        return sorted({**self.tests, **self.controls})


def plain_exam(suite: Suite) -> Exam:
    """The suite unchanged."""
    return Exam(suite.files, {test: test for test in suite.expected}, may_skip=suite.may_skip)
