"""An exam is what one grading runs: files to place over the workspace, and the required outcome of every test.

Test ids in the box may differ from the task's own: drawing an exam renames tests and adds others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.tasks.verifiers.tests.suite import Suite


@dataclass(frozen=True, slots=True)
class Withheld:
    """A comparison made outside the box, whose expected values do not enter the box."""

    key: str
    """The key under which the test reports its values."""
    values: tuple[object, ...]
    """The values that the test must report in this order. If it reports more, it must repeat them in complete
    rounds."""


@dataclass(frozen=True, slots=True)
class Exam:
    """What one grading runs."""

    files: Mapping[str, bytes]
    tests: Mapping[str, str]
    """Tests that must pass, as a mapping from the id in the box to the task's own id."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """Tests that must fail, as a mapping from the id in the box to the task's own id of the test that was altered."""
    withheld: Mapping[str, tuple[Withheld, ...]] = field(default_factory=dict)
    """Withheld comparisons, by the id of their test in the box."""
    keeper: str = ""
    """Name of the builtin function that tests in the box call to report a value instead of comparing it."""
    may_skip: frozenset[str] = frozenset()
    """The task's own ids of tests that may be skipped."""
    guess: float = 1.0
    """Probability that code passes which solves nothing and forges its results."""

    @property
    def ids(self) -> list[str]:
        return sorted({**self.tests, **self.controls})


def plain_exam(suite: Suite) -> Exam:
    """Return the suite unchanged, as an exam."""
    return Exam(suite.files, {test: test for test in suite.expected}, may_skip=suite.may_skip)
