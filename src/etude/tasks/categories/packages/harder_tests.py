"""The hidden tests of a task that is made from a package: its own, and one more with answers that are hard to guess."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etude.tasks.categories.computed_cases import TEST, with_computed_cases
from etude.tasks.categories.packages import Package, written_otherwise
from etude.tasks.verifiers.language import module_name

_ALIKE = 2
"""Number of further correct solutions of a package that must give the same answers to the additional test."""


@dataclass(frozen=True, slots=True)
class Hidden:
    tests: Mapping[str, bytes]
    ids: tuple[str, ...] = ()
    """Ids of those `tests` that were added to the package's own."""


def harder_tests(package: Package, failing: Sequence[str], unsolved: Mapping[str, bytes], seed: str) -> Hidden | None:
    """Return the package's tests and one more, whose answers are hard to guess; None if no such test can be made.
    `failing` are the ids of the package's tests that the files `unsolved` fail."""
    rng = random.Random(seed)
    path = next(path for path in package.tests if module_name(path) == failing[0].rsplit(".", 2)[0])
    names = {test.rpartition(".")[2] for test in failing}
    alike = [written_otherwise(package, rng) or package.files for _ in range(_ALIKE)]
    source = with_computed_cases(path, package.tests, names, package.files, unsolved, alike, rng)
    return None if source is None else Hidden({**package.tests, path: source}, (f"{module_name(path)}.{TEST}",))
