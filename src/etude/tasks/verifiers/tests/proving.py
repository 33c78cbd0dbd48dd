"""Finds out by trial runs how gradings can protect a test suite against forged results. A test may get altered copies,
which must fail, or its values may be compared outside the box. A trial runs all of this twice: once with the reference
solution, and once in the unchanged workspace.

With the reference solution, an original test must pass and its altered copies must fail. The values that tests report
for comparison outside the box must be the expected ones. If the original fails in the unchanged workspace, its copies
must fail at the same line, so that a failure does not show which version is altered.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from etude.tasks.verifiers.tests.altering import alternatives, other_exceptions
from etude.tasks.verifiers.tests.exam import Exam
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.judging import FAILURES, holds, missed
from etude.tasks.verifiers.tests.naming import Names
from etude.tasks.verifiers.tests.pool import AlterableTest, Pool, alterable_tests, test_functions
from etude.tasks.verifiers.tests.pricing import Missed, TestPath, Unsolved, all_missed, priced
from etude.tasks.verifiers.tests.rewriting import compose, copy_of, reporting_edit, source_text
from etude.tasks.verifiers.tests.run_output import Rows, RunOutput, read_rows
from etude.tasks.verifiers.tests.site import Edit, Site
from etude.tasks.verifiers.tests.suite import Suite
from etude.tasks.verifiers.tests.withholding import ReportingRewrite, consistent_sites, edits_outside

GUESS = 1e-3
"""Largest acceptable probability that code which solves nothing passes by forging its results."""
MOST = 127
"""Maximum number of altered copies tried per assertion of a fail_to_pass test. Each expects another value."""
DETECTORS, FEW = 6, 2
"""Maximum number of pass_to_pass tests that get altered copies, and number of copies tried per assertion of these
tests. Altered copies catch code that makes every test pass."""
Run = Callable[[Exam, bool], Awaitable[RunOutput]]
"""Runs an exam with the reference solution (True) or without any change (False)."""
_KEEPER = "_told"


async def prove(
    suite: Suite, sources: Mapping[str, bytes], run: Run, rng: random.Random, shown: Mapping[str, bytes]
) -> Pool:
    """Return the pool of the suite's tests, with the expected values that trial runs show to be fit for altering or for
    withholding from the box. `sources` are the test files as a grading places them. `shown` are the other files that an
    agent sees (the instruction and the workspace), by path; those that tell most come first."""
    # This runs in the event loop's thread, although parsing a large suite takes seconds: Python 3.11 parses in one
    # thread at a time, or raises SystemError.
    names = {file: tuple(f.path[-1] for f in test_functions(file, source)) for file, source in sources.items()}
    unproven = [one for file in sorted(sources) for one in alterable_tests(suite, file, sources)]
    first = await _try(_Trial(suite, sources, unproven, rng), run)
    # Try alterations of tests for which none were tried, but whose answers cannot be withheld after all.
    undecided = [one for one in first.found if one.decides and not one.withheld and not one.alterations]
    again = await _try(_Trial(suite, sources, undecided, rng, prefer_withholding=False), run)
    better = {(one.file, one.function.path): one for one in again.found}
    found = [better.get((one.file, one.function.path), one) for one in first.found]
    pool = Pool(sources, tuple(found), names, sum(one.seconds for one in first.found))
    unsolved = {**first.unsolved, **again.unsolved}
    if set(suite.fail_to_pass) <= first.answered:
        # Something else decides, such as the size of the code, and the unsolved code may not stay as it is. Then its
        # answers are as unknown as they would be without it.
        unsolved = {(one.file, one.function.path): all_missed(one) for one in found}
    return priced(suite, pool, unsolved, shown)


async def _try(trial: _Trial, run: Run) -> _Result:
    if not trial.exam.tests:
        return _Result()
    solved = await run(trial.exam, True)
    unsolved = await run(trial.exam, False)
    return trial.result(read_rows(solved.rows, solved.nonce), read_rows(unsolved.rows, unsolved.nonce))


@dataclass(frozen=True, slots=True)
class _Tried:
    """One test function, and the versions of it that a trial runs."""

    alterable: AlterableTest
    rewrite: ReportingRewrite
    """Version of the function that reports values instead of comparing them. It keeps the function's own name."""
    ids_in_box: Mapping[str, str]
    """For each of the task's ids of this function's tests: the test's id in the box in the reporting version. Empty if
    the trial does not run that version."""
    original: tuple[str, ...]
    """Ids in the box of the tests of the unaltered version, which runs under a new name beside the altered copies.
    Empty if there are no such copies."""
    compared: Mapping[str, Site]
    """The assertions of the unaltered version, by the key under which each reports the value that it compares."""
    altered: Mapping[str, Edit]
    """The edit of each altered copy, by the copy's name."""


@dataclass(frozen=True, slots=True)
class _Result:
    """Result of a trial: the tests, each with those of its values that can be altered or be withheld from the box, and
    what the unsolved code (the unchanged workspace) reports."""

    found: tuple[AlterableTest, ...] = ()
    unsolved: Mapping[TestPath, Unsolved] = field(default_factory=dict)
    """What the unsolved code reports in each test function, by the function's file and its path in that file."""
    answered: frozenset[str] = frozenset()
    """The task's ids of those tests that the unchanged workspace passes already."""


class _Trial:
    """Two runs of the same exam (rewritten tests), with the reference solution and without any change. They show which
    expected values gradings can alter or withhold from the box. Of each function, the exam has a version that reports
    values, or altered copies with the original, or both."""

    def __init__(
        self,
        suite: Suite,
        sources: Mapping[str, bytes],
        unproven: Sequence[AlterableTest],
        rng: random.Random,
        *,
        prefer_withholding: bool = True,
    ) -> None:
        """Compose the exam. With `prefer_withholding`, a fail_to_pass test gets no altered copies if all its values can
        be withheld instead. If withholding needs edits outside the function, the function is either altered or has
        values withheld, and `prefer_withholding` decides which."""
        self._suite, self._rng, self._ids, self._held_back = suite, rng, Ids(suite.config), prefer_withholding
        self._tried: list[_Tried] = []
        self._untouched: list[str] = []
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
            functions = {one.alterable.function for one in tried}
            rest = [one for one in unproven if one.file == file and one.decides and one.function not in functions]
            self._untouched += [test for one in rest for test in one.tests]
            for one in tried:
                copies = [self._ids.renamed(test, name) for name in one.altered for test in one.alterable.tests]
                tests.update(dict.fromkeys([*one.ids_in_box.values(), *one.original, *copies], ""))
        if tests:
            tests.update(dict.fromkeys(self._untouched, ""))
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
            compared = {
                f"{self._rng.getrandbits(64):x}": site for site in function.sites if edits and any(site.compared)
            }
            if edits:
                reports = [reporting_edit(source, site, _KEEPER, key) for key, site in compared.items()]
                copies.append(copy_of(source, function, name, reports))
                copies += [copy_of(source, function, other, [edit]) for other, edit in edits.items()]
            if copies:
                groups[function] = copies
                original = tuple(self._ids.renamed(test, name) for test in unproven.tests) if edits else ()
                ids = {test: rewrite.id_in_box(self._ids, test) for test in unproven.tests} if reported else {}
                tried.append(_Tried(unproven, rewrite, ids, original, compared, edits))
        return groups, tried

    def _alteration_count(self, unproven: AlterableTest, reported: list[Site]) -> int:
        """Return how many altered copies of a test to try per assertion. With `prefer_withholding`, a fail_to_pass test
        whose values can all be withheld gets none: telling them from altered ones is no harder than guessing them. A
        pass_to_pass test gets none either, except for the few chosen as detectors (`DETECTORS`)."""
        if not unproven.decides:
            return FEW if unproven in self._detectors else 0
        if self._held_back and len(reported) == len(unproven.function.sites) > 0:
            return 0
        return min(MOST, math.ceil(math.exp(-math.log(GUESS) / len(self._suite.fail_to_pass))) - 1)

    def result(self, solved: Rows, unsolved: Rows) -> _Result:
        """Return what the trial shows. `solved` are the result rows of the run with the reference solution, `unsolved`
        those of the run without any change."""
        found, answers = [], {}
        answered = {test for test in self._untouched if _passed([test], unsolved)}
        for tried in self._tried:
            kept, missing = self._withheld_sites(tried, solved, unsolved)
            one = replace(
                tried.alterable,
                seconds=self._seconds(tried, solved),
                # A test whose renamed copy fails cannot be renamed in exams, so it gets no alterations.
                alterations=self._alterations(tried, solved, unsolved) if _passed(tried.original, solved) else (),
                withheld=kept,
            )
            found.append(one)
            answers[one.file, one.function.path] = Unsolved(missing, _answers(tried, unsolved))
            versions = [*tried.ids_in_box.values(), *tried.original]
            if not missing and len(kept) == len(tried.rewrite.sites) and _passed(versions, unsolved):
                answered.update(one.tests)
        return _Result(tuple(found), answers, frozenset(answered))

    def _seconds(self, tried: _Tried, solved: Rows) -> float:
        """Return the seconds that one version of a test takes: the median over the original and its altered copies,
        because a busy machine may delay single ones. Without copies, it is the time of the version that reports
        values."""
        copies = [[self._ids.renamed(test, name) for test in tried.alterable.tests] for name in tried.altered]
        versions = [tried.original or tuple(tried.ids_in_box.values()), *copies]
        return median(sum(solved.seconds.get(test, 0.0) for test in version) for version in versions)

    def _withheld_sites(
        self, tried: _Tried, solved: Rows, unsolved: Rows
    ) -> tuple[tuple[Site, ...], tuple[Missed, ...]]:
        """Return the assertions whose expected values can be withheld from the box. Also return those of the values
        that the unsolved code does not report: code that solves nothing would have to guess them."""
        if not _passed(tried.ids_in_box.values(), solved):
            return (), ()
        sites, refuted, missing = tried.rewrite.sites, set(), []
        for test, mine in tried.ids_in_box.items():
            for withheld in tried.rewrite.withheld(self._ids, test):
                if not holds(withheld, solved, mine):
                    refuted.add(withheld.key)
                missing += [(withheld.key, value, tuple(texts)) for value, texts in missed(withheld, unsolved, mine)]
        kept = consistent_sites([site for key, site in sites.items() if key not in refuted], sites.values())
        return tuple(kept), tuple((sites[key], value, texts) for key, value, texts in missing if sites[key] in kept)

    def _alterations(self, tried: _Tried, solved: Rows, unsolved: Rows) -> tuple[Edit, ...]:
        """Return the alterations that both runs show to be usable, at the assertion that has the most of them."""

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


def _answers(tried: _Tried, rows: Rows) -> dict[Site, list[object]]:
    """Return what a run reports at each assertion."""
    found: dict[Site, list[object]] = {}
    for tests, sites in ((tried.ids_in_box.values(), tried.rewrite.sites), (tried.original, tried.compared)):
        for key, site in sites.items():
            found.setdefault(site, []).extend(text for test in tests for text in rows.reported(test, key))
    return found


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
