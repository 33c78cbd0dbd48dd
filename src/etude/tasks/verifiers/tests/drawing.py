"""Draws the exam of a grading: which comparisons are made outside the box, which tests appear in several versions.

Of a test in several versions, only one is right; names are fresh and the order is random. Code that forges its results
has to guess which: with k altered copies, the probability is one in k + 1 per test.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence

from etude.tasks.verifiers.contract import SEALED
from etude.tasks.verifiers.tests.exam import Exam, Withheld, plain_exam
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.naming import Names
from etude.tasks.verifiers.tests.pool import Pool, Questions
from etude.tasks.verifiers.tests.proving import GUESS
from etude.tasks.verifiers.tests.rewriting import compose, copy_of, respelt
from etude.tasks.verifiers.tests.site import Edit
from etude.tasks.verifiers.tests.suite import Suite
from etude.tasks.verifiers.tests.withholding import Telling

COST = {True: 2.0, False: 0.2}
"""Time that controls may add, as a share of the suite's test time plus one second: the larger until a verdict is
sealed (True), the smaller from there to the aim."""
DETECTORS = 2
"""Tests that appear in two versions only to catch code that passes everything."""


def guess(copies: Sequence[int]) -> float:
    """A blind forger's probability to pick the right version of every test, given the number of altered copies of
    each."""
    return math.prod(1 / (count + 1) for count in copies)


def choose(pool: Pool, rng: random.Random, aim: float = GUESS) -> tuple[dict[Questions, int], float]:
    """The number of altered copies of each test, and the forger's remaining probability.

    A test gets none if its expected value is withheld and hard to guess. Among the others, copies are added one by one
    to the test with the fewest, quick tests first, until the aim is reached or the time is spent.
    """
    deciding = [asked for asked in pool.questions if asked.decides]
    counts = {asked: 0 for asked in deciding if asked.alterations and asked.chance > aim}
    spent, affordable = 0.0, pool.seconds + 1
    chances = [asked.chance for asked in deciding if asked not in counts]
    # Easily guessed answers may all be right with one strategy, so together they count as one guess.
    easy = min((chance for chance in chances if chance > SEALED), default=1.0)
    fixed = easy * math.prod(chance for chance in chances if chance <= SEALED)
    while (left := fixed * guess(list(counts.values()))) > aim:
        room = COST[left > SEALED] * affordable - spent
        more = [a for a, count in counts.items() if count < len(a.alterations) and a.seconds <= room]
        if not more:
            break
        chosen = min(more, key=lambda asked: (counts[asked], asked.seconds))
        counts[chosen] += 1
        spent += chosen.seconds
    # Tests with withheld answers get no copies: an altered copy would almost reveal the answer.
    others = [asked for asked in pool.questions if asked.alterations and not (asked.decides and asked.withheld)]
    others = [asked for asked in others if not counts.get(asked)]
    rng.shuffle(others)
    others.sort(key=lambda asked: round(asked.seconds, 2))
    for asked in others[: max(0, DETECTORS - sum(counts.values()))]:
        if asked.seconds <= COST[False] * affordable - spent:
            counts[asked] = 1
            spent += asked.seconds
    return counts, left


def chance_left(pool: Pool) -> float:
    """A blind forger's probability in exams of this pool."""
    return choose(pool, random.Random(0))[1] if pool.questions else 1.0


def draw_exam(suite: Suite, pool: Pool, rng: random.Random) -> Exam:
    if not pool.questions:
        return plain_exam(suite)
    counts, left = choose(pool, rng)
    drawing = _Drawing(suite, pool, rng)
    for asked in pool.questions:
        drawing.add(asked, counts.get(asked, 0))
    return drawing.exam(left)


class _Drawing:
    def __init__(self, suite: Suite, pool: Pool, rng: random.Random) -> None:
        self._suite, self._pool, self._rng = suite, pool, rng
        self._ids = Ids(suite.config)
        self._keeper = "_" + secrets.token_hex(4)
        self._names: dict[str, Names] = {}
        self._groups: dict[str, dict[TestFunction, list[bytes]]] = {}
        self._elsewhere: dict[str, list[Edit]] = {}
        self._tests = {test: test for test in suite.expected}
        self._controls: dict[str, str] = {}
        self._withheld: dict[str, tuple[Withheld, ...]] = {}

    def add(self, asked: Questions, copies: int) -> None:
        source, function = self._pool.sources[asked.file], asked.function
        # Tests in several versions keep their comparison in the box; else the right version would stand out.
        sites = asked.withheld if not copies else ()
        if not copies and not sites:
            return
        telling = Telling(source, function, {secrets.token_hex(4): site for site in sites}, self._keeper)
        edits = [respelt(function, asked.alterations[0][0])] if copies else telling.within
        self._elsewhere.setdefault(asked.file, []).extend(telling.elsewhere)
        name = self._name(asked) if copies else function.path[-1]
        versions = [copy_of(source, function, name, edits)]
        for test in asked.tests:
            mine = telling.in_box(self._ids, self._ids.renamed(test, name))
            del self._tests[test]
            self._tests[mine] = test
            if sites:
                self._withheld[mine] = telling.withheld(self._ids, test)
        for edit in self._rng.sample(asked.alterations, copies):
            versions.append(self._control(asked, edit))
        self._rng.shuffle(versions)
        self._groups.setdefault(asked.file, {})[function] = versions

    def _control(self, asked: Questions, edit: Edit) -> bytes:
        name = self._name(asked)
        self._controls.update({self._ids.renamed(test, name): test for test in asked.tests})
        return copy_of(self._pool.sources[asked.file], asked.function, name, [edit])

    def _name(self, asked: Questions) -> str:
        if asked.file not in self._names:
            self._names[asked.file] = Names(self._pool.names[asked.file], self._rng)
        return self._names[asked.file].draw()

    def exam(self, left: float) -> Exam:
        files = dict(self._suite.files)
        for file, groups in self._groups.items():
            files[file] = compose(file, self._pool.sources[file], groups, self._elsewhere[file])
        return Exam(files, self._tests, self._controls, self._withheld, self._keeper, self._suite.may_skip, left)
