"""What is drawn keeps what is asked, hides what is withheld, and mixes in what must fail."""

from __future__ import annotations

import ast
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks.verifiers.tests import Exam, Suite, SuiteConfig, expectations
from etude.tasks.verifiers.tests.chances import Ways
from etude.tasks.verifiers.tests.drawing import choose, draw_exam, guess
from etude.tasks.verifiers.tests.pool import AlterableTest, Pool, alterable_tests
from etude.tasks.verifiers.tests.rewriting import source_text

from . import projects

FILE = "tests/test_prices.py"
SOURCE = projects.PYTEST.encode()
FAILS = (f"{FILE}::test_total_with_discount", f"{FILE}::test_total_of_nothing")
PASSES = (
    f"{FILE}::test_label_of_price",
    f"{FILE}::test_cheapest_of_some[given0-2]",
    f"{FILE}::test_cheapest_of_some[given1-1]",
    f"{FILE}::TestEdges::test_cheapest_of_nothing",
)
SUITE = Suite(SuiteConfig(runner="pytest"), {FILE: SOURCE, "tests/data.txt": b"x"}, FAILS, PASSES)


def pool(*, withheld: bool = True, alterations: int = 3, seconds: float = 0.001, tell: Ways | None = None) -> Pool:
    """As if proven: numbers are altered, and what can be is withheld. `tell` is how each original can be told."""

    def proven(asked: AlterableTest) -> AlterableTest:
        sites = asked.function.sites
        edits = tuple(
            (site.literal, (site.exception + "X" if site.exception else source_text(site, f"other {n}")).encode())
            for site in sites[:1]
            if site.literal
            for n in range(alterations)
        )
        reported = tuple(site for site in sites if site.statement) if withheld else ()
        chance = 0.001 if reported and asked.decides else 1.0
        ways = tell or {f"= {asked.function.path}": 0.001}
        return replace(asked, seconds=seconds, alterations=edits, withheld=reported, chance=chance, ways_to_tell=ways)

    alterable = tuple(map(proven, alterable_tests(SUITE, FILE, {FILE: SOURCE})))
    names = tuple(function.path[-1] for function in expectations.test_functions(SOURCE))
    held = tuple({f"{place}": one.chance} for place, one in enumerate(alterable) if one.decides and one.withheld)
    return Pool({FILE: SOURCE}, alterable, {FILE: names}, seconds * len(alterable), held)


def names_in(exam: Exam) -> set[str]:
    """Ids, without parameters, of the test functions in the file."""
    found = set()
    for node in ast.parse(exam.files[FILE]).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            found.add(f"{FILE}::{node.name}")
        if isinstance(node, ast.ClassDef):
            found |= {f"{FILE}::{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@settings(max_examples=25)
@given(st.integers(), st.booleans(), st.integers(0, 9))
def test_every_expected_test_is_asked_once_and_all_that_is_asked_is_there(
    seed: int, withheld: bool, alterations: int
) -> None:
    exam = draw_exam(SUITE, pool(withheld=withheld, alterations=alterations), random.Random(seed))
    assert sorted(exam.tests.values()) == sorted(SUITE.expected)
    assert not exam.tests.keys() & exam.controls.keys()
    assert set(exam.controls.values()) <= set(SUITE.expected)
    assert {test.partition("[")[0] for test in exam.ids} <= names_in(exam)
    assert exam.files["tests/data.txt"] == b"x"
    text = exam.files[FILE].decode()
    for test, kept in exam.withheld.items():
        assert exam.tests[test] in SUITE.expected
        for withheld_one in kept:
            assert text.count(f'{exam.keeper}("{withheld_one.key}"') == 1


def test_answers_that_decide_are_not_in_the_box() -> None:
    exam = draw_exam(SUITE, pool(), random.Random(1))
    text = exam.files[FILE].decode()
    assert "== 10" not in text
    assert "== -3" not in text
    assert {exam.tests[test] for test in exam.withheld} >= set(FAILS)
    assert exam.guess == pytest.approx(1e-6)
    assert not set(exam.controls.values()) & set(FAILS), "a copy would nearly tell them"
    assert len(exam.controls) == 2, "but some tests are there to catch who passes everything"


def test_versions_of_a_test_differ_in_one_literal_and_names_are_fresh() -> None:
    exam = draw_exam(SUITE, pool(withheld=False, alterations=40), random.Random(3))
    assert exam.guess <= 1e-3
    known = names_in(Exam(SUITE.files, {}))
    for test in FAILS:
        versions = [drawn for drawn, ours in {**exam.tests, **exam.controls}.items() if ours == test]
        assert len(versions) >= 31
        assert not known & set(versions)


def test_the_right_version_lies_anywhere_among_the_others() -> None:
    places: dict[int, int] = {}
    for seed in range(120):
        exam = draw_exam(SUITE, pool(withheld=False, alterations=3), random.Random(seed))
        versions = {name.rpartition("::")[2]: ours for name, ours in {**exam.tests, **exam.controls}.items()}
        order = [
            node.name
            for node in ast.parse(exam.files[FILE]).body
            if isinstance(node, ast.FunctionDef) and versions.get(node.name) == FAILS[0]
        ]
        right = next(name.rpartition("::")[2] for name, ours in exam.tests.items() if ours == FAILS[0])
        place = order.index(right)
        places[place] = places.get(place, 0) + 1
    assert set(places) == {0, 1, 2, 3}
    assert all(16 < count < 45 for count in places.values()), places


def test_controls_stop_at_the_aim_and_at_their_cost() -> None:
    found = pool(withheld=False, alterations=100)
    counts, left = choose(found, random.Random(1))
    assert left == guess(found, {asked: count for asked, count in counts.items() if asked.decides})
    assert 1 / 1100 < left <= 1 / 1000
    slow = replace(found, alterable=tuple(replace(a, seconds=0.1) for a in found.alterable), seconds=0.5)
    counts, left = choose(slow, random.Random(1))
    assert 1 / 110 < left <= 1 / 100, "enough to be sealed, and no more"
    slower = replace(found, alterable=tuple(replace(a, seconds=1) for a in found.alterable), seconds=5.0)
    counts, left = choose(slower, random.Random(1))
    assert sum(counts.values()) <= 2 * (slower.seconds + 1)
    assert left > 1 / 100


@pytest.mark.parametrize(
    ("copies", "tell", "chance"),
    [
        ([], None, 1.0),
        ([1, 0], None, 0.5),
        ([9, 9], None, 0.01),
        ([9, 9], {"= 3": 0.2}, 0.2),
        ([1, 9], {"= 3": 0.02}, 0.05),
    ],
)
def test_the_chance_to_tell_originals(copies: list[int], tell: Ways | None, chance: float) -> None:
    found = pool(withheld=False, tell=tell)
    decide = [one for one in found.alterable if one.decides]
    assert guess(found, dict(zip(decide, copies, strict=False))) == pytest.approx(chance)


def test_copies_that_protect_nothing_are_not_made() -> None:
    counts, left = choose(pool(withheld=False, tell={"known": 1.0}), random.Random(1))
    assert [one for one in counts if one.is_altered] == []
    assert left == 1
    counts, left = choose(pool(withheld=False, alterations=40, tell={"= 3": 0.1}), random.Random(1))
    assert sum(count for one, count in counts.items() if one.decides) == 5, "with 2 and 3, both are told by one guess"
    assert left == pytest.approx(0.1)
