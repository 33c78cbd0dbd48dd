"""Proves which alterations and withheld comparisons of a suite can be used, with two runs of all of them.

With the reference, every altered copy must fail whose original passes, and the reported values must be as expected.
Without any change, copy and original must fail at the same line, so that a failure does not tell them apart.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from etude.tasks.verifiers.tests.account import Account, Rows, read_rows
from etude.tasks.verifiers.tests.agree import FAILURES, holds, missed
from etude.tasks.verifiers.tests.altering import alternatives, other_exceptions
from etude.tasks.verifiers.tests.exam import Exam
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.naming import Names
from etude.tasks.verifiers.tests.pool import Pool, Questions, chance_of_all, questions_of, test_functions
from etude.tasks.verifiers.tests.rewriting import compose, copy_of, spelt
from etude.tasks.verifiers.tests.site import Edit, Site
from etude.tasks.verifiers.tests.suite import Suite
from etude.tasks.verifiers.tests.withholding import Telling, elsewhere, whole

GUESS = 1e-3
"""The aim: the largest acceptable probability of a blind forger."""
MOST = 127
"""Most alterations tried per site of a fail_to_pass test."""
DETECTORS, FEW = 6, 2
"""DETECTORS: number of other tests of which some appear in two versions, to catch code that passes everything. FEW:
alterations tried per site of them."""
Run = Callable[[Exam, bool], Awaitable[Account]]
"""Runs an exam, with the reference (True) or without any change."""
_KEEPER = "_told"


async def prove(suite: Suite, sources: Mapping[str, bytes], run: Run, rng: random.Random) -> Pool:
    """Prove the pool of a suite. `sources` are the test files as they are in the workspace at grading."""
    # Not in a thread, although parsing a large suite takes seconds: Python 3.11 parses in one thread at a time, or
    # raises SystemError.
    names = {file: tuple(f.path[-1] for f in test_functions(file, source)) for file, source in sources.items()}
    asked = [one for file in sorted(sources) for one in questions_of(suite, file, sources)]
    pool = await _try(_Trial(suite, sources, asked, rng), run)
    # Tests whose answer was meant to be withheld, but could not be.
    open_still = [one for one in pool.questions if one.decides and one.chance > GUESS and not one.alterations]
    again = await _try(_Trial(suite, sources, open_still, rng, held_back=False), run)
    better = {(one.file, one.function.path): one for one in again.questions}
    questions = tuple(better.get((one.file, one.function.path), one) for one in pool.questions)
    return Pool(sources, questions, names, pool.seconds)


async def _try(trial: _Trial, run: Run) -> Pool:
    if not trial.exam.tests:
        return Pool()
    solved = await run(trial.exam, True)
    unsolved = await run(trial.exam, False)
    return trial.result(read_rows(solved.rows, solved.nonce), read_rows(unsolved.rows, unsolved.nonce))


@dataclass(frozen=True, slots=True)
class _Tried:
    questions: Questions
    told: Telling
    telling: Mapping[str, str]
    """The ids in the box, by the task's ids; empty where nothing can be withheld."""
    original: tuple[str, ...]
    """Ids of the unaltered copy; empty where nothing is altered."""
    altered: Mapping[str, Edit]
    """Alterations, by the name of the copy."""


class _Trial:
    """Everything that might be used of some tests, in one exam, which costs little more than the tests themselves."""

    def __init__(
        self,
        suite: Suite,
        sources: Mapping[str, bytes],
        asked: Sequence[Questions],
        rng: random.Random,
        *,
        held_back: bool = True,
    ) -> None:
        """`held_back`: do not try alterations for a test whose answer can be withheld."""
        self._suite, self._rng, self._ids, self._held_back = suite, rng, Ids(suite.config), held_back
        self._sources = sources
        self._tried: list[_Tried] = []
        others = [one for one in asked if not one.decides]
        self._detectors = rng.sample(others, min(DETECTORS, len(others)))
        files, tests = dict(suite.files), {}
        for file in sorted({one.file for one in asked}):
            groups, tried = self._file(file, sources[file], [one for one in asked if one.file == file])
            blanks = [edit for one in tried for edit in one.told.elsewhere]
            try:
                files[file] = compose(file, sources[file], groups, blanks)
            except ValueError:  # Source that cannot be rewritten is used unchanged.
                continue
            self._tried += tried
            for one in tried:
                copies = [self._ids.renamed(test, name) for name in one.altered for test in one.questions.tests]
                tests.update(dict.fromkeys([*one.telling.values(), *one.original, *copies], ""))
        self.exam = Exam(files, tests, keeper=_KEEPER)

    def _file(
        self, file: str, source: bytes, found: list[Questions]
    ) -> tuple[dict[TestFunction, list[bytes]], list[_Tried]]:
        groups: dict[TestFunction, list[bytes]] = {}
        tried = []
        names = Names((function.path[-1] for function in test_functions(file, source)), self._rng)
        for asked in found:
            function, told = asked.function, [site for site in asked.function.sites if site.statement]
            edits = {names.draw(): edit for edit in _candidates(asked, self._wanted(asked, told), self._rng)}
            if any(elsewhere(site, function) for site in told):  # Other versions of the test need what it blanks.
                told = [] if edits and not self._held_back else told
                edits = {} if self._held_back else edits
            keys = {f"{self._rng.getrandbits(64):x}": site for site in told}
            telling = Telling(source, function, keys, _KEEPER)
            name, copies = names.draw(), []
            if told:
                copies.append(copy_of(source, function, function.path[-1], telling.within))
            if edits:
                copies.append(copy_of(source, function, name))
                copies += [copy_of(source, function, other, [edit]) for other, edit in edits.items()]
            if copies:
                groups[function] = copies
                original = tuple(self._ids.renamed(test, name) for test in asked.tests) if edits else ()
                ids = {test: telling.in_box(self._ids, test) for test in asked.tests} if told else {}
                tried.append(_Tried(asked, telling, ids, original, edits))
        return groups, tried

    def _wanted(self, asked: Questions, told: list[Site]) -> int:
        """Alterations to try per site: none where the answer can be withheld and is hard to guess."""
        if not asked.decides:
            return FEW if asked in self._detectors else 0
        if self._held_back and chance_of_all([(site, value) for site in told for value in site.values]) <= GUESS:
            return 0
        return min(MOST, math.ceil(math.exp(-math.log(GUESS) / len(self._suite.fail_to_pass))) - 1)

    def result(self, solved: Rows, unsolved: Rows) -> Pool:
        """The pool that follows from the run with the reference and the run without any change."""
        found, total = [], 0.0
        for tried in self._tried:
            seconds = self._seconds(tried, solved)
            total += seconds
            told, wrong = self._told(tried, solved, unsolved)
            found.append(
                replace(
                    tried.questions,
                    seconds=seconds,
                    # A test that fails under another name is not used under one.
                    alterations=self._alterations(tried, solved, unsolved) if _passed(tried.original, solved) else (),
                    withheld=told,
                    chance=chance_of_all(wrong),
                )
            )
        return Pool(self._sources, tuple(found), seconds=total)

    def _seconds(self, tried: _Tried, solved: Rows) -> float:
        """Time of one version: the median of all, because single ones may have waited for a busy machine."""
        copies = [[self._ids.renamed(test, name) for test in tried.questions.tests] for name in tried.altered]
        versions = [tried.original or tuple(tried.telling.values()), *copies]
        return median(sum(solved.seconds.get(test, 0.0) for test in version) for version in versions)

    def _told(self, tried: _Tried, solved: Rows, unsolved: Rows) -> tuple[tuple[Site, ...], list[tuple[Site, object]]]:
        """The sites whose answers can be withheld; and of their answers, those that are wrong without a solution."""
        if not _passed(tried.telling.values(), solved):
            return (), []
        refuted, missing = set(), []
        for test, mine in tried.telling.items():
            for withheld in tried.told.withheld(self._ids, test):
                if not holds(withheld, solved, mine):
                    refuted.add(withheld.key)
                missing += [(withheld.key, value) for value in missed(withheld, unsolved, mine)]
        sites = tried.told.sites
        kept = whole([site for key, site in sites.items() if key not in refuted], sites.values())
        return tuple(kept), [(sites[key], value) for key, value in missing if sites[key] in kept]

    def _alterations(self, tried: _Tried, solved: Rows, unsolved: Rows) -> tuple[Edit, ...]:
        """The proven alterations of the site that has most of them."""

        def fate(test: str) -> tuple[str | None, int | None]:
            return unsolved.outcomes.get(test), unsolved.places.get(test)

        solvable = _passed(tried.original, unsolved)
        proven: dict[tuple[int, int], list[Edit]] = {}
        for name, edit in tried.altered.items():
            copies = [self._ids.renamed(test, name) for test in tried.questions.tests]
            alike = solvable or list(map(fate, copies)) == list(map(fate, tried.original))
            if alike and all(solved.outcomes.get(copy) in FAILURES for copy in copies):
                proven.setdefault(edit[0], []).append(edit)
        most: list[Edit] = []
        for edits in proven.values():
            most = edits if len(edits) > len(most) else most
        return tuple(most)


def _passed(tests: Iterable[str], rows: Rows) -> bool:
    return all(rows.outcomes.get(test) == "passed" for test in tests)


def _candidates(asked: Questions, wanted: int, rng: random.Random) -> list[Edit]:
    """Alterations to try: up to `wanted` for each site."""
    found: list[Edit] = []
    for site in asked.function.sites:
        if site.literal is None:
            continue
        if site.exception:
            texts = rng.sample(others := other_exceptions(site.exception), min(wanted, len(others)))
        else:
            texts = [spelt(site, value) for value in alternatives(site.value, wanted, rng)]
        found += [(site.literal, text.encode()) for text in texts]
    return found
