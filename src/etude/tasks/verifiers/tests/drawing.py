"""Draws the exam of each grading (the tests that it runs) at random: which comparisons are made outside the box, and
which tests run together with altered copies, which expect wrong values.

Of a test and its copies, only one version expects the right value; all have new names and a random order. Code that
forges its results has to guess which version this is: with k altered copies, the probability is one in k + 1 per test,
unless the right value is likelier than that by itself.
"""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Mapping

from etude.tasks.verifiers.contract import SEALED
from etude.tasks.verifiers.tests.chances import chance_of_all
from etude.tasks.verifiers.tests.exam import Exam, Withheld, plain_exam
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.naming import Names
from etude.tasks.verifiers.tests.pool import AlterableTest, Pool
from etude.tasks.verifiers.tests.proving import GUESS
from etude.tasks.verifiers.tests.rewriting import compose, copy_of, rewritten_literal
from etude.tasks.verifiers.tests.site import Edit
from etude.tasks.verifiers.tests.suite import Suite
from etude.tasks.verifiers.tests.withholding import ReportingRewrite

COST = {True: 2.0, False: 0.2}
"""Limits on the time that altered copies of tests may add to a run. The unit is the time of all alterable tests plus
one second. COST[True] applies as long as a sealed verdict (one that is safe against forgery) needs more copies,
COST[False] to further copies."""
DETECTORS = 2
"""Minimum number of altered copies of tests that a grading runs, if time allows. Altered copies must fail, so they
catch code that makes every test pass."""


def guess(pool: Pool, counts: Mapping[AlterableTest, int]) -> float:
    """Return the probability of passing by guessing. `counts` has the number of altered copies of each test. To pass,
    one must guess all withheld values, and tell the original of each test from its copies: by guessing the value that
    the original expects, or by choosing a version blindly."""
    altered = [(item.ways_to_tell, 1 / (count + 1)) for item, count in counts.items() if count]
    mixed = [{**ways, f"version {place}": blindly} for place, (ways, blindly) in enumerate(altered)]
    return max(chance_of_all([*pool.held, *more]) for more in ([ways for ways, _ in altered], mixed))


def choose(pool: Pool, rng: random.Random, aim: float = GUESS) -> tuple[dict[AlterableTest, int], float]:
    """Return how many altered copies of each test a grading runs, and the probability of passing by guessing.

    Copies are added one by one, to fail_to_pass tests that copies protect better than withholding their values does.
    The next copy is always of the test with the fewest copies or, among several such tests, of the quickest. This ends
    when the probability is at most `aim`, when copies do not lower it any more, or when no further copy fits in the
    time that `COST` allows. If there are then fewer than `DETECTORS` copies, further tests get one copy each.
    """
    counts = {item: 0 for item in pool.alterable if item.is_altered}
    spent, affordable = 0.0, pool.seconds + 1
    # What is left with any number of copies: someone who guesses what the tests expect sees through them.
    least = guess(pool, dict.fromkeys(counts, sys.maxsize))
    while (left := guess(pool, counts)) > max(aim, least):
        room = COST[left > SEALED] * affordable - spent
        more = [
            item
            for item, count in counts.items()
            if count < len(item.alterations) and item.chance_to_tell * (count + 1) < 1 and item.seconds <= room
        ]
        if not more:
            break
        chosen = min(more, key=lambda item: (counts[item], item.seconds))
        counts[chosen] += 1
        spent += chosen.seconds
    # Tests with withheld answers get no copies: an altered copy would almost reveal the answer.
    others = [item for item in pool.alterable if item.alterations and not (item.decides and item.withheld)]
    others = [item for item in others if not counts.get(item)]
    rng.shuffle(others)
    others.sort(key=lambda item: round(item.seconds, 2))
    for item in others[: max(0, DETECTORS - sum(counts.values()))]:
        if item.seconds <= COST[False] * affordable - spent:
            counts[item] = 1
            spent += item.seconds
    return counts, left


def chance_left(pool: Pool) -> float:
    """Return the probability that code which solves nothing passes a grading. `pool` has the tests whose expected
    values can be altered or withheld; each grading draws its exam from it."""
    return choose(pool, random.Random(0))[1] if pool.alterable else 1.0


def draw_exam(suite: Suite, pool: Pool, rng: random.Random) -> Exam:
    """Return the exam of one grading: the suite's tests, some with altered copies or with expected values withheld from
    the box. `pool` says which tests allow this; `rng` decides among them."""
    if not pool.alterable:
        return plain_exam(suite)
    counts, left = choose(pool, rng)
    drawing = _Drawing(suite.with_sources(pool.sources), pool, rng)
    for item in pool.alterable:
        drawing.add(item, counts.get(item, 0))
    return drawing.exam(left)


class _Drawing:
    def __init__(self, suite: Suite, pool: Pool, rng: random.Random) -> None:
        self._suite, self._pool, self._rng = suite, pool, rng
        self._ids = Ids(suite.config)
        self._keeper = "_" + secrets.token_hex(4)
        self._names: dict[str, Names] = {}
        self._groups: dict[str, dict[TestFunction, list[bytes]]] = {}
        self._edits_outside: dict[str, list[Edit]] = {}
        self._tests = {test: test for test in suite.expected}
        self._controls: dict[str, str] = {}
        self._withheld: dict[str, tuple[Withheld, ...]] = {}

    def add(self, item: AlterableTest, copies: int) -> None:
        source, function = self._pool.sources[item.file], item.function
        # Tests in several versions keep their comparison in the box; else the right version would stand out.
        sites = item.withheld if not copies else ()
        if not copies and not sites:
            return
        rewrite = ReportingRewrite(source, function, {secrets.token_hex(4): site for site in sites}, self._keeper)
        edits = [rewritten_literal(function, item.alterations[0][0])] if copies else rewrite.edits_inside
        self._edits_outside.setdefault(item.file, []).extend(rewrite.edits_outside)
        name = self._name(item) if copies else function.path[-1]
        versions = [copy_of(source, function, name, edits)]
        for test in item.tests:
            mine = rewrite.id_in_box(self._ids, self._ids.renamed(test, name))
            del self._tests[test]
            self._tests[mine] = test
            if sites:
                self._withheld[mine] = rewrite.withheld(self._ids, test)
        for edit in self._rng.sample(item.alterations, copies):
            versions.append(self._control(item, edit))
        self._rng.shuffle(versions)
        self._groups.setdefault(item.file, {})[function] = versions

    def _control(self, item: AlterableTest, edit: Edit) -> bytes:
        name = self._name(item)
        self._controls.update({self._ids.renamed(test, name): test for test in item.tests})
        return copy_of(self._pool.sources[item.file], item.function, name, [edit])

    def _name(self, item: AlterableTest) -> str:
        if item.file not in self._names:
            self._names[item.file] = Names(self._pool.names[item.file], self._rng)
        return self._names[item.file].draw()

    def exam(self, left: float) -> Exam:
        files = dict(self._suite.files)
        for file, groups in self._groups.items():
            files[file] = compose(file, self._pool.sources[file], groups, self._edits_outside[file])
        return Exam(files, self._tests, self._controls, self._withheld, self._keeper, self._suite.may_skip, left)
