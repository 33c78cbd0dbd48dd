"""Finds out by trial runs which altered copies of tests, and which comparisons made outside the box, gradings can use.
A trial runs all of them twice: once with the reference solution, and once in the unchanged workspace.

With the reference solution, an original test must pass and its altered copies must fail. The values reported for
comparisons outside the box must be the expected ones. If the original fails in the unchanged workspace, its copies must
fail at the same line, so that a failure does not show which version is altered.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from etude.tasks.verifiers.tests.altering import alternatives, other_exceptions
from etude.tasks.verifiers.tests.exam import Exam
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.judging import FAILURES, holds, missed
from etude.tasks.verifiers.tests.naming import Names
from etude.tasks.verifiers.tests.pool import AlterableTest, Pool, alterable_tests, chance_of_all, test_functions
from etude.tasks.verifiers.tests.rewriting import compose, copy_of, source_text
from etude.tasks.verifiers.tests.run_output import Rows, RunOutput, read_rows
from etude.tasks.verifiers.tests.site import Edit, Site
from etude.tasks.verifiers.tests.suite import Suite
from etude.tasks.verifiers.tests.withholding import ReportingRewrite, consistent_sites, edits_outside

GUESS = 1e-3
"""Largest acceptable probability that code which solves nothing passes by forging its results."""
MOST = 127
"""Maximum number of alterations tried per assertion of a fail_to_pass test."""
DETECTORS, FEW = 6, 2
"""DETECTORS: maximum number of pass_to_pass tests for which a trial tries alterations. Gradings use such altered tests
to catch code that makes every test pass. FEW: maximum number of alterations tried per assertion of these tests."""
Run = Callable[[Exam, bool], Awaitable[RunOutput]]
"""A function that runs an exam (the tests of one run) with the reference solution (True) or without any change
(False)."""
_KEEPER = "_told"


async def prove(suite: Suite, sources: Mapping[str, bytes], run: Run, rng: random.Random) -> Pool:
    """Return the pool of a suite: its test functions, with the expected values that gradings can alter or withhold from
    the box, as trial runs show. `sources` are the test files as grading places them in the workspace."""
    # This runs in the event loop's thread, although parsing a large suite takes seconds: Python 3.11 parses in one
    # thread at a time, or raises SystemError.
    names = {file: tuple(f.path[-1] for f in test_functions(file, source)) for file, source in sources.items()}
    unproven = [one for file in sorted(sources) for one in alterable_tests(suite, file, sources)]
    pool = await _try(_Trial(suite, sources, unproven, rng), run)
    # Try alterations of tests for which none were tried, but whose answer cannot be withheld after all.
    undecided = [one for one in pool.alterable if one.decides and one.chance > GUESS and not one.alterations]
    again = await _try(_Trial(suite, sources, undecided, rng, prefer_withholding=False), run)
    better = {(one.file, one.function.path): one for one in again.alterable}
    alterable = tuple(better.get((one.file, one.function.path), one) for one in pool.alterable)
    return Pool(sources, alterable, names, pool.seconds)


async def _try(trial: _Trial, run: Run) -> Pool:
    if not trial.exam.tests:
        return Pool()
    solved = await run(trial.exam, True)
    unsolved = await run(trial.exam, False)
    return trial.result(read_rows(solved.rows, solved.nonce), read_rows(unsolved.rows, unsolved.nonce))


@dataclass(frozen=True, slots=True)
class _Tried:
    """One test function, with the versions of it that a trial runs: one that reports values instead of comparing them,
    altered copies, which must fail, and the original to compare the copies with."""

    alterable: AlterableTest
    """The tried test function as it was before the trial, with no alterations chosen."""
    rewrite: ReportingRewrite
    """The version of the test function that reports values instead of comparing them. It keeps the function's own
    name."""
    ids_in_box: Mapping[str, str]
    """For each test of the function, by the task's own id: the id that it has in the box, in the version that reports
    values instead of comparing them. Empty if the trial does not run this version."""
    original: tuple[str, ...]
    """The ids that the tests of the unaltered function have in the box. The trial runs this version under a new name,
    beside the altered copies. Empty if the trial runs no altered copies."""
    altered: Mapping[str, Edit]
    """For each altered copy of the test function, by the copy's name: the edit that replaces an expected value or
    exception."""


class _Trial:
    """Two runs of test functions, which show what gradings can alter in them or withhold from the box. Both runs
    execute the same exam (set of tests), once with the reference solution and once without any change. The exam
    contains all versions of each function that are to be tried: altered copies, the original, and a version that
    reports values instead of comparing them."""

    def __init__(
        self,
        suite: Suite,
        sources: Mapping[str, bytes],
        unproven: Sequence[AlterableTest],
        rng: random.Random,
        *,
        prefer_withholding: bool = True,
    ) -> None:
        """Build the exam of this trial: the tests that both of its runs execute. With `prefer_withholding`, no
        alterations are tried for a test whose expected values can be withheld from the box and are hard to guess."""
        self._suite, self._rng, self._ids, self._held_back = suite, rng, Ids(suite.config), prefer_withholding
        self._sources = sources
        self._tried: list[_Tried] = []
        others = [one for one in unproven if not one.decides]
        self._detectors = rng.sample(others, min(DETECTORS, len(others)))
        files, tests = dict(suite.files), {}
        for file in sorted({one.file for one in unproven}):
            groups, tried = self._file(file, sources[file], [one for one in unproven if one.file == file])
            blanks = [edit for one in tried for edit in one.rewrite.edits_outside]
            try:
                files[file] = compose(file, sources[file], groups, blanks)
            except ValueError:  # Source that cannot be rewritten is used unchanged.
                continue
            self._tried += tried
            for one in tried:
                copies = [self._ids.renamed(test, name) for name in one.altered for test in one.alterable.tests]
                tests.update(dict.fromkeys([*one.ids_in_box.values(), *one.original, *copies], ""))
        self.exam = Exam(files, tests, keeper=_KEEPER)

    def _file(
        self, file: str, source: bytes, found: list[AlterableTest]
    ) -> tuple[dict[TestFunction, list[bytes]], list[_Tried]]:
        groups: dict[TestFunction, list[bytes]] = {}
        tried = []
        names = Names((function.path[-1] for function in test_functions(file, source)), self._rng)
        for unproven in found:
            function, reported = unproven.function, [site for site in unproven.function.sites if site.statement]
            edits = {
                names.draw(): edit
                for edit in _candidates(unproven, self._alteration_count(unproven, reported), self._rng)
            }
            # Edits outside the function would remove code that other versions of the test need.
            if any(edits_outside(site, function) for site in reported):
                reported = [] if edits and not self._held_back else reported
                edits = {} if self._held_back else edits
            keys = {f"{self._rng.getrandbits(64):x}": site for site in reported}
            rewrite = ReportingRewrite(source, function, keys, _KEEPER)
            name, copies = names.draw(), []
            if reported:
                copies.append(copy_of(source, function, function.path[-1], rewrite.edits_inside))
            if edits:
                copies.append(copy_of(source, function, name))
                copies += [copy_of(source, function, other, [edit]) for other, edit in edits.items()]
            if copies:
                groups[function] = copies
                original = tuple(self._ids.renamed(test, name) for test in unproven.tests) if edits else ()
                ids = {test: rewrite.id_in_box(self._ids, test) for test in unproven.tests} if reported else {}
                tried.append(_Tried(unproven, rewrite, ids, original, edits))
        return groups, tried

    def _alteration_count(self, unproven: AlterableTest, reported: list[Site]) -> int:
        """Return how many alterations to try per assertion of a test. `reported` are its assertions whose expected
        values might be withheld from the box instead. The result is 0 if the trial prefers withholding and these values
        are hard to guess. It is also 0 for all but `DETECTORS` of the pass_to_pass tests."""
        if not unproven.decides:
            return FEW if unproven in self._detectors else 0
        if self._held_back and chance_of_all([(site, value) for site in reported for value in site.values]) <= GUESS:
            return 0
        return min(MOST, math.ceil(math.exp(-math.log(GUESS) / len(self._suite.fail_to_pass))) - 1)

    def result(self, solved: Rows, unsolved: Rows) -> Pool:
        """Return the pool of the tried test functions, with the expected values that gradings can alter or withhold
        from the box. Two runs of the trial decide this: `solved` with the reference solution, and `unsolved` in the
        unchanged workspace."""
        found, total = [], 0.0
        for tried in self._tried:
            seconds = self._seconds(tried, solved)
            total += seconds
            reported, wrong = self._withheld_sites(tried, solved, unsolved)
            found.append(
                replace(
                    tried.alterable,
                    seconds=seconds,
                    # A test whose renamed copy fails cannot be renamed in exams, so it gets no alterations.
                    alterations=self._alterations(tried, solved, unsolved) if _passed(tried.original, solved) else (),
                    withheld=reported,
                    chance=chance_of_all(wrong),
                )
            )
        return Pool(self._sources, tuple(found), seconds=total)

    def _seconds(self, tried: _Tried, solved: Rows) -> float:
        """Return the seconds that one version of a test takes. It is the median of the original and its altered copies,
        because a busy machine may have delayed single ones. Without altered copies, it is the time of the version that
        reports values."""
        copies = [[self._ids.renamed(test, name) for test in tried.alterable.tests] for name in tried.altered]
        versions = [tried.original or tuple(tried.ids_in_box.values()), *copies]
        return median(sum(solved.seconds.get(test, 0.0) for test in version) for version in versions)

    def _withheld_sites(
        self, tried: _Tried, solved: Rows, unsolved: Rows
    ) -> tuple[tuple[Site, ...], list[tuple[Site, object]]]:
        """Return the assertions whose expected values can be withheld from the box. Also return those of their values
        that the unsolved code does not report, as pairs of assertion and value. Code that solves nothing would have to
        guess them."""
        if not _passed(tried.ids_in_box.values(), solved):
            return (), []
        refuted, missing = set(), []
        for test, mine in tried.ids_in_box.items():
            for withheld in tried.rewrite.withheld(self._ids, test):
                if not holds(withheld, solved, mine):
                    refuted.add(withheld.key)
                missing += [(withheld.key, value) for value in missed(withheld, unsolved, mine)]
        sites = tried.rewrite.sites
        kept = consistent_sites([site for key, site in sites.items() if key not in refuted], sites.values())
        return tuple(kept), [(sites[key], value) for key, value in missing if sites[key] in kept]

    def _alterations(self, tried: _Tried, solved: Rows, unsolved: Rows) -> tuple[Edit, ...]:
        """Return the alterations of a test function that gradings can use, all of them at the same assertion: the one
        with the most usable alterations. The rows of the trial's two runs show which are usable: `solved` are from the
        run with the reference solution, `unsolved` from the run in the unchanged workspace."""

        def failure_of(test: str) -> tuple[str | None, int | None]:
            return unsolved.outcomes.get(test), unsolved.places.get(test)

        solvable = _passed(tried.original, unsolved)
        proven: dict[tuple[int, int], list[Edit]] = {}
        for name, edit in tried.altered.items():
            copies = [self._ids.renamed(test, name) for test in tried.alterable.tests]
            alike = solvable or list(map(failure_of, copies)) == list(map(failure_of, tried.original))
            if alike and all(solved.outcomes.get(copy) in FAILURES for copy in copies):
                proven.setdefault(edit[0], []).append(edit)
        most: list[Edit] = []
        for edits in proven.values():
            most = edits if len(edits) > len(most) else most
        return tuple(most)


def _passed(tests: Iterable[str], rows: Rows) -> bool:
    return all(rows.outcomes.get(test) == "passed" for test in tests)


def _candidates(unproven: AlterableTest, wanted: int, rng: random.Random) -> list[Edit]:
    """Return the alterations of a test to try: up to `wanted` for each of its assertions."""
    found: list[Edit] = []
    for site in unproven.function.sites:
        if site.literal is None:
            continue
        if site.exception:
            texts = rng.sample(others := other_exceptions(site.exception), min(wanted, len(others)))
        else:
            texts = [source_text(site, value) for value in alternatives(site.value, wanted, rng)]
        found += [(site.literal, text.encode()) for text in texts]
    return found
