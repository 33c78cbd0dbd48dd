"""Expectations in tables, under names, and computed: told in whole, found nowhere, and right for honest code alone."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks.box import run_tests
from etude.tasks.verifiers.tests import SuiteConfig, expectations
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.ids import Ids
from etude.tasks.verifiers.tests.judging import holds
from etude.tasks.verifiers.tests.rewriting import compose, copy_of
from etude.tasks.verifiers.tests.run_output import read_rows
from etude.tasks.verifiers.tests.visible_answers import reveals
from etude.tasks.verifiers.tests.withholding import ReportingRewrite, with_matching_rows

FILE = "tests/test_table.py"
KEEPER = "_told_of_a_table"
IDS = Ids(SuiteConfig(runner="pytest"))
Table = list[tuple[int, str]]


def _rows(table: Table) -> str:
    return "[" + ", ".join(f"({number}, {text!r})" for number, text in table) + "]"


def _function(*lines: str) -> str:
    return "def test_it():\n" + "".join(f"    {line}\n" for line in lines)


def _params(rows: str, before: str = "", names: str = "'n, text'", check: str = "f(n) == text") -> str:
    return f"{before}@pytest.mark.parametrize({names}, {rows})\ndef test_it(n, text):\n    assert {check}\n"


FORMS: dict[str, Callable[[Table], str]] = {
    "parameters": lambda table: _params(_rows(table)),
    "parameters, a comma at the end": lambda table: _params(_rows(table) + ", ", names="('n', 'text')"),
    "parameters, the other way round": lambda table: _params(_rows(table), check="text == f(n)"),
    "parameters under a name": lambda table: _params("ROWS", f"ROWS = {_rows(table)}\n\n\n"),
    "parameters with ids": lambda table: _params(f"{_rows(table)}, ids={[text for _, text in table]!r}"),
    "pytest.param": lambda table: _params(
        "[" + ", ".join(f"pytest.param({n}, {text!r}, id={text + '!'!r})" for n, text in table) + "]"
    ),
    "a formula": lambda table: (
        f"@pytest.mark.parametrize('n', {[number for number, _ in table]})\n"
        "def test_it(n):\n    assert f(n) == n * 3 + 10_000\n"
    ),
    "a loop": lambda table: _function(f"for n, text in {_rows(table)}:", "    assert f(n) == text"),
    "a loop with subtests": lambda table: _function(
        f"rows = {_rows(table)}",
        "for n, text in rows:",
        "    with case.subTest(n=n, text=text):",
        "        assert f(n) == text, text",
    ),
    "a dictionary": lambda table: (
        f"ROWS = {dict(table)!r}\n\n\n" + _function("for n, text in ROWS.items():", "    assert f(n) == text")
    ),
    "a dictionary in place": lambda table: _function(
        f"for n, text in {dict(table)!r}.items():", "    assert [f(n)] == [text]"
    ),
    "two loops": lambda table: _function(
        "for again in range(2):", f"    for n, text in {_rows(table)}:", "        assert f(n) == text"
    ),
    "names": lambda table: _function(
        *(line for n, text in table for line in (f"wanted_{n} = {text!r}", f"assert f({n}) == wanted_{n}"))
    ),
    "computed": lambda table: _function(
        *(f"assert f({n}) == ''.join([{text[:3]!r}, {text[3:]!r}])" for n, text in table)
    ),
    "a formatted text": lambda table: _function(
        *(
            line
            for n, text in table
            for line in (f"end_{n} = {text[2:]!r}", f"assert f({n}) == f'{text[:2]}{{end_{n}}}'")
        )
    ),
}
TABLES = st.lists(
    st.tuples(st.integers(0, 99), st.text("abcxyz", min_size=2, max_size=6)),
    min_size=1, max_size=6, unique_by=lambda row: row[0],
).map(lambda rows: [(number, f"an{place}swer{text}") for place, (number, text) in enumerate(rows)])  # fmt: skip


class _Pytest:
    """As much of pytest as makes tests of rows: those under `ids`, or of what stands in pytest.param."""

    def __init__(self) -> None:
        self.cases: dict[str, Callable[[], None]] = {}
        self.mark = SimpleNamespace(parametrize=self.parametrize)

    def param(self, *values: object, id: str = "") -> Any:
        return SimpleNamespace(values=values, id=id)

    def parametrize(self, names: Any, rows: Any, ids: Any = None) -> Callable[[Any], Any]:
        ids = ids or [str(row) for row in rows]
        count = len(names.split(",") if isinstance(names, str) else names)

        def decorate(test: Any) -> Any:
            for row, row_ids in zip(rows, ids, strict=True):
                if isinstance(row, SimpleNamespace):
                    row, row_ids = row.values, row.id
                values = row if count > 1 else [row]
                self.cases[f"[{row_ids}]"] = lambda values=values: test(*values)
            return test

        return decorate


class _Case:
    @contextlib.contextmanager
    def subTest(self, **more: object) -> Iterator[None]:
        yield


def reported(source: str) -> tuple[TestFunction, ReportingRewrite, str]:
    """A file's only test, and the file in the box."""
    text = source.encode()
    (function,) = expectations.test_functions(text)
    telling = ReportingRewrite(text, function, {f"key{n}": site for n, site in enumerate(function.sites)}, KEEPER)
    copy = copy_of(text, function, "test_it", telling.edits_inside)
    return function, telling, compose(FILE, text, {function: [copy]}, telling.edits_outside).decode()


def our_ids(function: TestFunction) -> list[str]:
    rows = next((site.rows for site in function.sites if site.rows), ())
    return [f"{FILE}::test_it[{sorted(names)[0]}]" for names in rows] or [f"{FILE}::test_it"]


def passes(source: str, product: Callable[[int], object]) -> bool:
    """Whether what is told is as expected: with the keeper and the rows of the box, and in this process."""
    function, telling, made = reported(source)
    found, case = _Pytest(), _Case()
    names: dict[str, Any] = {"f": product, "pytest": found, "case": case}
    with tempfile.TemporaryFile() as file:
        rows = run_tests.Rows(file.fileno(), "nonce")
        rows.say(ready="1")
        builtins.__dict__[KEEPER] = run_tests.Keeper(rows)
        try:
            exec(compile(made, FILE, "exec"), names)
            for suffix, test in (found.cases or {"": names["test_it"]}).items():
                test()
                rows.say(test=f"{FILE}::test_it{suffix}", outcome="passed", seconds=0.0)
        finally:
            del builtins.__dict__[KEEPER]
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        heard = read_rows(file.read(), "nonce")
    assert not heard.tampered
    tests = our_ids(function)
    assert len(tests) == len(heard.outcomes)
    return all(
        holds(withheld, heard, telling.id_in_box(IDS, test))
        for test in tests
        for withheld in telling.withheld(IDS, test)
    )


@pytest.mark.parametrize("form", FORMS)
@given(table=TABLES, data=st.data())
@settings(max_examples=8, deadline=None)
def test_honest_code_passes_wrong_code_does_not_and_no_answer_is_in_the_box(
    form: str, table: Table, data: st.DataObject
) -> None:
    source = FORMS[form](table)
    answers = {number: 3 * number + 10_000 for number, _ in table} if form == "a formula" else dict(table)
    _, telling, made = reported(source)
    assert telling.sites, source
    for answer in answers.values():
        assert str(answer) not in made
    seen: list[str] = []

    def looking(number: int) -> object:
        frame: Any = sys._getframe(1)
        own = {name: value for name, value in frame.f_globals.items() if name not in ("f", "__builtins__")}
        seen.append(repr((frame.f_locals, own, frame.f_code.co_consts)))
        return answers[number]

    assert passes(source, looking)
    assert seen
    assert not any(str(answer) in part for answer in answers.values() for part in seen)
    wrong = data.draw(st.sampled_from([number for number, _ in table]))
    for other in ("", str(answers[wrong]) + "x", None, object()):
        assert not passes(source, lambda number, other=other: other if number == wrong else answers[number])


@pytest.mark.parametrize(
    "source",
    [
        "for n, text in [(1, 'abc')]:\n        assert f(text) == text",
        "for n, text in [(1, 'abc')]:\n        assert f(n) == text\n        g(text)",
        "for n, text in zip([1], ['abc']):\n        assert f(n) == text",
        "for n, text in [(1, 'abc'), (2, 'de')]:\n        if g(n): continue\n        assert f(n) == text",
        "for n, text in [(1, 'abc'), (2, 'de')]:\n        if g(n):\n            assert f(n) == text",
        "for n, text in table():\n        assert f(n) == text",
        "for n in range(10**9):\n        assert f(n) == n * 2 + 50",
        "wanted = 'abc'\n    wanted = g()\n    assert f(1) == wanted",
        "wanted = g()\n    assert f(1) == wanted",
        "given = [5, 6]\n    assert f(given) == given",
        "given = [5, 6]\n    assert f(given) == given[0]",
        "given = [('a', [41])]\n    g(given)\n    assert f('a') == given[0][1]",
        "given = [('a', [41])]\n    g(given)\n    assert f('a') == tuple(given[0][1])",
        "given = {'x': (7, [(41, 42)])}\n    assert f(given) == given['x'][1][0]",
        "given = {'x': {41: 'abc'}}\n    assert f(given) == max(given['x'])",
        "given = {(41, 42)}\n    assert f(given) == min(min(given))",
        "given = [('a', [41])]\n    for n, wanted in [(1, given[0][1])]:\n        assert f(n, given) == wanted",
        "for head, *tail in sorted(['a', 'bc']):\n        assert f(head) == tail",
        "for one, two in sorted(['a', 'bc']):\n        assert f(one) == two",
        "other = 'abc'\n    wanted = other\n    assert f(1, other) == wanted",
        "assert f(1) == sorted([3, 1], key=g)",
        "assert f(1) == list(ROWS)",
        "assert f(1) == str(SHARED)",
        "assert f(1) == open('x').read()",
        "assert f(1) == 'a' * 10**9",
        "assert f(1) == 2 ** 2 ** 40",
        "assert f(1) == '%0999999999d' % 3",
        "assert f(1) == len('abc') + unknown",
    ],
)
def test_what_is_not_known_or_can_be_found_is_left_as_it_is(source: str) -> None:
    before = "SHARED = 'abc'\n\n\ndef list(x): ...\n\n\ndef test_other():\n    g(SHARED)\n\n\n"
    text = f"{before}def test_it():\n    {source}\n"
    assert [site.values for site in expectations.test_functions(text.encode())[-1].sites] == []


@pytest.mark.parametrize("ids", ["{'a', 'b'}", "{'a': 1, 'b': 2}", "zip('ab')", "2"])
def test_rows_that_are_called_in_a_way_of_their_own_are_left_as_they_are(ids: str) -> None:
    source = _params(f"[(1, 'abc'), (2, 'def')], ids={ids}")
    assert [site.values for site in expectations.test_functions(source.encode())[-1].sites] == []


def test_what_is_there_many_times_over_is_looked_into_once() -> None:
    source = "inner = [7] * 46\n    given = [inner] * 46\n    more = [given] * 46\n    "
    source = f"def test_it():\n    {source}assert f(more) == max(more[0][0]) + 34\n"
    began = time.process_time()
    (function,) = expectations.test_functions(source.encode())
    assert [site.values for site in function.sites] == [(41,)]
    assert time.process_time() - began < 1


def test_numbers_of_several_ranges_are_found() -> None:
    given = [range(300, 400), range(500, 600), {"x": range(700, 800)}]
    numbers = [*range(300, 400), *range(500, 600), *range(700, 800)]
    assert [number for number in numbers if not reveals(given, number)] == []
    assert not reveals(given, 450)


def test_a_number_need_only_be_near_where_the_test_says_so() -> None:
    source = "import pytest\n\n\ndef test_it():\n    assert f(1) == pytest.approx(2.5, abs=0.1)\n"
    source += "    case.assertAlmostEqual(f(1), 2.45, places=1)\n    case.assertAlmostEqual(f(1), 2.4, delta=0.2)\n"
    source += "    assert [f(1), None] == pytest.approx([2.5, None], rel=0.1)\n"
    without_import = source.partition("\n\n\n")[2]
    (function,) = expectations.test_functions(source.encode())
    assert len(function.sites) == 4
    for answer, right in ((2.5, True), (2.47, True), (2.3, False), ("2.5", False), (float("nan"), False)):
        assert passes(without_import, lambda _, answer=answer: answer) is right, answer


ROWS = st.lists(
    st.tuples(
        st.text(max_size=4) | st.integers() | st.floats() | st.none() | st.booleans() | st.binary(max_size=3),
        st.text("ab", max_size=2) | st.lists(st.integers(), max_size=1) | st.floats(allow_nan=False),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@given(st.lists(ROWS, min_size=12, max_size=20))
@settings(max_examples=2, deadline=None)
def test_rows_are_called_as_pytest_calls_them(tables: list[list[tuple[Any, Any]]]) -> None:
    """Each row is that of its own test, or its table is left as it is: where pytest tells equal names apart."""
    lines = ["import pytest"]
    for number, table in enumerate(tables):
        rows = repr(table).replace("inf", "1e999").replace("nan", "int")
        lines += [f"@pytest.mark.parametrize('a, b', {rows})", f"def test_it{number}(a, b):", "    assert f(a) == b"]
    source = "\n".join(lines) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        tests = "def pytest_collection_finish(session):\n    import json\n"
        tests += "    with open('found', 'w') as file: json.dump([item.nodeid for item in session.items], file)\n"
        Path(folder, "conftest.py").write_text(tests)
        Path(folder, "test_table.py").write_text(source)
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "test_table.py"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        collected = json.loads(Path(folder, "found").read_text())
    for function in expectations.test_functions(source.encode()):
        mine = [test for test in collected if test.partition("[")[0].endswith(f"::{function.path[0]}")]
        for site in with_matching_rows(function, mine, IDS).sites:
            assert [site.row_of(IDS.row(test)) for test in mine] == list(range(len(site.rows)))


def test_most_tables_are_matched() -> None:
    rows = "[(1, 'a b'), (-2.5, 'é'), (None, 'x[1]'), (b'q', [3]), (int, 'y')]"
    (function,) = expectations.test_functions(_params(rows).encode())
    (site,) = function.sites
    row_ids = ["1-a b", "-2.5-\\xe9", "None-x[1]", "q-text3", "int-y"]
    assert [site.row_of(name) for name in row_ids] == list(range(5))
    assert site.row_of("another") is None
    assert with_matching_rows(function, [f"{FILE}::test_it[{name}-extra]" for name in row_ids], IDS).sites == ()
