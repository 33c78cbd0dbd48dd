"""Which assertions of a Python file are sites, and what becomes of the source when they are altered or told."""

from __future__ import annotations

import ast
import builtins
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks.verifiers.tests import expectations
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.rewriting import compose, copy_of, report_edit, rewritten_literal
from etude.tasks.verifiers.tests.withholding import ReportingRewrite

find = expectations.test_functions
SOURCE = '''"""Tests — with a wide character before them."""
import pytest

CONSTANT = 3


@pytest.mark.parametrize("a", [1, 2])
def test_equal(a):
    """Says é."""
    assert f(a) == 10, "a message that tells 10"
    assert [1, -2] == f(
        a  # why
    )
    assert f(a) == CONSTANT
    assert f(a) == g(a)
    assert 1 == 1
    assert f(a)


class TestMore(Base):
    @property
    def helper(self):
        assert f(1) == 5

    def test_methods(self):
        self.assertEqual(f(1), {"a": (1, None)})
        self.assertEqual("x", f(2), "message")
        self.assertEqual(*pair)
        self.assertGreater(f(1), 3)
        with self.assertRaises(ValueError):
            f(-1)
        with self.subTest(i=1):
            self.assertEqual(f(1), 7)
        with pytest.raises(AssertionError):
            assert f(3) == 9
        try:
            assert f(3) == 8
        except AssertionError:
            pass

        def inner():
            assert f(4) == 2

    class TestDeep:
        async def test_deep(self):
            for i in range(3):
                if i:
                    assert await f(i) == "é"
                assert "x" in f(i)
'''.encode()


def function(name: str, source: bytes = SOURCE) -> TestFunction:
    return next(found for found in find(source) if found.path[-1] == name)


def text(span: tuple[int, int], source: bytes = SOURCE) -> str:
    return source[slice(*span)].decode()


def test_functions_are_found_with_their_classes_and_decorators() -> None:
    assert [found.path for found in find(SOURCE)] == [
        ("test_equal",),
        ("TestMore", "test_methods"),
        ("TestMore", "TestDeep", "test_deep"),
    ]
    first = function("test_equal")
    assert text(first.span).startswith("@pytest.mark.parametrize")
    assert text(first.span).endswith("assert f(a)")
    assert text(first.name) == "test_equal"


def test_sites_are_comparisons_with_literals_that_nothing_can_catch() -> None:
    def sites(name: str) -> list[tuple[str, bool]]:
        return [(text(site.literal or (0, 0)), site.statement is not None) for site in function(name).sites]

    assert sites("test_equal") == [("10", True), ("[1, -2]", True), ("", True)]
    assert function("test_equal").sites[2].value == 3
    assert sites("test_methods") == [
        ('{"a": (1, None)}', True),
        ('"x"', True),
        ("3", False),
        ("ValueError", False),
        ("7", True),
        ("AssertionError", False),
    ]
    assert sites("test_deep") == [('"é"', True), ('"x"', False)]


@pytest.mark.parametrize("source", [b"def test_x(:\n", b"\xff", b"def test_x():\n\x0c    assert f() == 1\n", b"a\0b"])
def test_what_is_not_plain_python_yields_nothing(source: bytes) -> None:
    assert find(source) == []


def test_a_copy_differs_in_name_and_literal_alone() -> None:
    found = function("test_equal")
    made = copy_of(SOURCE, found, "test_other", [(found.sites[0].literal or (0, 0), b"11")])
    assert made == SOURCE[slice(*found.span)].replace(b"test_equal", b"test_other").replace(b"== 10", b"== 11")


def test_an_original_is_spelt_like_its_alterations() -> None:
    found = function("test_methods")
    literals = [site.literal or (0, 0) for site in found.sites]
    assert rewritten_literal(found, literals[1]) == (literals[1], b"'x'")
    assert rewritten_literal(found, literals[3])[1] == b"ValueError"


def test_what_is_told_holds_no_expectation() -> None:
    groups, edits_outside = {}, []
    for found in find(SOURCE):
        sites = {f"key{n}": site for n, site in enumerate(found.sites) if site.statement}
        reported = ReportingRewrite(SOURCE, found, sites, "_told")
        groups[found] = [copy_of(SOURCE, found, found.path[-1], reported.edits_inside)]
        edits_outside += reported.edits_outside
    made = compose("test_x.py", SOURCE, groups, edits_outside).decode()
    for gone in ("10", "[1, -2]", '"a": (1, None)', '"é"', "message"):
        assert gone not in made
    assert '_told("key1", (f(\n        a  # why\n    )))' in made
    assert '_told("key0", (await f(i)))' in made
    assert '_told("key2", (f(a)))' in made
    assert "CONSTANT = None" in made
    assert "assert f(a) == g(a)" in made


def test_copies_lie_beside_their_original_in_its_class() -> None:
    found = function("test_deep")
    copies = [copy_of(SOURCE, found, name) for name in ("test_b", "test_a", "test_deep")]
    tree = ast.parse(compose("test_x.py", SOURCE, {found: copies}))
    outer = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    inner = next(node for node in outer.body if isinstance(node, ast.ClassDef))
    assert [getattr(node, "name", "") for node in inner.body] == ["test_b", "test_a", "test_deep"]


def test_functions_that_cannot_be_multiplied_are_refused() -> None:
    source = b"class A: \n    x = 1; y = 2\nif 1: \n    pass\nclass B:\n  def test_b(self): assert f() == 1\n"
    found = function("test_b", source)
    compose("b.py", source, {found: [copy_of(source, found, "test_c"), copy_of(source, found, "test_d")]})
    shared = b"class C: x = 1\ndef other(): pass\nclass D:\n    def test_d(self): assert f() == 1\n"
    moved = TestFunction(("test_d",), (9, 14), (9, 10), 9)
    with pytest.raises(ValueError, match="shares its first line"):
        compose("c.py", shared, {moved: [b"x = 2"]})


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(
    st.lists(
        st.tuples(LITERALS, st.sampled_from(["assert f({n}) == {v}", "assert {v} == f({n})"])), min_size=1, max_size=4
    )
)
def test_any_literals_are_found_and_told_in_place(rows: list[tuple[Any, str]]) -> None:
    lines = [form.format(n=place, v=repr(value)) for place, (value, form) in enumerate(rows)]
    source = "".join(["def test_x():\n", *(f"    {line}\n" for line in lines)]).encode()
    (found,) = find(source)
    assert [site.value for site in found.sites] == [value for value, _ in rows]
    edits = [report_edit(source, site, "_told_here", str(n)) for n, site in enumerate(found.sites)]
    made = compose("test_x.py", source, {found: [copy_of(source, found, "test_x", edits)]})
    reported: list[tuple[str, int]] = []
    builtins.__dict__["_told_here"] = lambda key, value: reported.append((key, value))
    with contextlib.ExitStack() as stack:
        stack.callback(builtins.__dict__.pop, "_told_here")
        names: dict[str, Any] = {"f": lambda n: n}
        exec(made, names)
        names["test_x"]()
    assert reported == [(str(n), n) for n in range(len(rows))]


@pytest.mark.parametrize(
    ("source", "given"),
    [
        ("assert f([5, 6]) == [5, 6]", [True]),
        ("assert f('a', 'bc', 'd') == 'bc'", [True]),
        ("assert f({'x': (41, 42)}) == (41, 42)", [True]),
        ("assert f([5, 6]) == [6, 5]", [False]),
        ("assert f('abc') == 'ab'", [False]),
        ("assert f(3) == 5\n    assert f(5) == 8", [False, False]),
        ("given = ['5m', '1h']\n    assert f(given) == '1h'", [True]),
        ("given = ['5m', '1h']\n    wanted = '1h'\n    assert f(given) == wanted", [True]),
        ("given = ['5m', '1h']\n    assert f(given).g(7) == 'h1'", [False]),
        ("for n, wanted in [(17, 17), (18, 19)]:\n        assert f(n) == wanted", [True, False]),
        ("for n, wanted in [(17, 19), (19, 17)]:\n        assert f(n) == wanted", [False, False]),
        ("assert f(sorted([9, 7])[0]) == 7", [True]),
        ("self.assertEqual(f('ab'), 'ab')", [True]),
        ("self.assertEqual('ab', f('cd'))", [False]),
    ],
)
def test_an_answer_that_was_given_is_held_back_but_known(source: str, given: list[bool]) -> None:
    """Whoever answers with a part of what it was given needs no answer to be found."""
    (found,) = find(f"def test_it():\n    {source}\n".encode())
    answers = [(site, value) for site in found.sites for value in site.values]
    assert all(site.statement for site in found.sites)
    assert [repr(value) in site.given for site, value in answers] == given
