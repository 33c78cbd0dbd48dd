"""The pool of a hidden suite: its test functions, with the expected values that a grading may alter or withhold from
the box. Trial runs have found out which values these are. From the pool, each grading draws its exam: the tests that it
runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath

from etude.tasks.verifiers.tests import expectations, javascript
from etude.tasks.verifiers.tests.chances import Ways
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.site import Edit, Site
from etude.tasks.verifiers.tests.suite import Suite
from etude.tasks.verifiers.tests.withholding import edits_outside, with_matching_rows, without_outside_edits


@dataclass(frozen=True, slots=True)
class AlterableTest:
    """One test function of a suite, with what can be altered in it or withheld from the box."""

    file: str
    function: TestFunction
    tests: tuple[str, ...]
    """The task's ids of this function's tests. There are several if the function is parametrised."""
    decides: bool
    """Whether any test of this function is in the suite's fail_to_pass."""
    seconds: float = 0.0
    alterations: tuple[Edit, ...] = ()
    """Edits of which each makes one copy of the test, with a wrong expected value or exception. All of them change the
    same assertion: with changes in several places, the original would stand out as the version most like the others."""
    withheld: tuple[Site, ...] = ()
    """Assertions of this function whose comparison with the expected value can be made outside the box."""
    chance: float = 1.0
    """Probability of guessing all withheld values of this test. Values that the unsolved code computes already count as
    known."""
    ways_to_tell: Ways = field(default_factory=lambda: {"known": 1.0}, hash=False)
    """The ways to tell the original test from its altered copies, with their probabilities: the ways to guess the
    number, word or exception in which these versions differ. The number of copies does not matter."""

    @property
    def chance_to_tell(self) -> float:
        return max(self.ways_to_tell.values())

    @property
    def is_altered(self) -> bool:
        """Whether copies of this test with wrong expected values, which must fail, protect the right values better than
        withholding them from the box does. If so, gradings run some copies."""
        return self.decides and bool(self.alterations) and self.chance_to_tell < self.chance


@dataclass(frozen=True, slots=True)
class Pool:
    """The test functions of a suite in which a grading can alter or withhold expected values."""

    sources: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of the suite's test files, by path."""
    alterable: tuple[AlterableTest, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of all test functions in the suite's test files, alterable or not, by file."""
    seconds: float = 0.0
    """Seconds that all functions in `alterable` together take with the reference solution."""
    held: tuple[Ways, ...] = ()
    """For each withheld value that the code under test does not know anyway, the ways to guess it. Only values of tests
    in fail_to_pass count, and of these only tests that are not `is_altered`."""


def alterable_tests(suite: Suite, file: str, sources: Mapping[str, bytes]) -> list[AlterableTest]:
    """Return a file's test functions that the suite requires to pass, with no alterations chosen yet."""
    ids = Ids(suite.config)
    wanted: dict[str, list[str]] = {}
    for test in suite.expected:
        wanted.setdefault(ids.address(test), []).append(test)
    functions = test_functions(file, sources[file])
    outside = any(edits_outside(site, function) for function in functions for site in function.sites)
    shared = outside and _is_named_in(file, {**suite.files, **sources})
    paths = [function.path for function in functions]
    found = []
    for function in functions:
        tests = [test for address in ids.addresses(file, function.path) for test in wanted.get(address, [])]
        if tests and paths.count(function.path) == 1:  # Of two functions with one name, one hides the other.
            function = with_matching_rows(function, tests, ids)
            if shared:
                function = without_outside_edits(function)
            found.append(AlterableTest(file, function, tuple(tests), not set(tests).isdisjoint(suite.fail_to_pass)))
    return found


def _is_named_in(file: str, sources: Mapping[str, bytes]) -> bool:
    """Return whether another file mentions this file's name, and so might import it."""
    path = PurePosixPath(file)
    name = path.parent.name if path.stem == "__init__" else path.stem
    encoded = name.encode("utf-8", "surrogateescape")
    word = re.compile(rb"\b" + re.escape(encoded) + rb"\b")
    return any(encoded in data and bool(word.search(data)) for other, data in sources.items() if other != file)


@lru_cache(maxsize=8)
def test_functions(file: str, source: bytes) -> Sequence[TestFunction]:
    """Return the test functions of a Python or JavaScript file; none for other files. The result is cached, because
    parsing takes as long as all other work with a file."""
    if file.endswith(".py"):
        return tuple(expectations.test_functions(source))
    return tuple(javascript.test_functions(source)) if file.endswith((".js", ".mjs", ".cjs")) else ()
