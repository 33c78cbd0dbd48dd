"""Test files without their remarks: nothing else of them changes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks.verifiers.tests import expectations, javascript
from etude.tasks.verifiers.tests.remarks import without_remarks

PYTHON = b'''#!/usr/bin/env python3
"""It gives 43."""
import unittest  # 43


class T(unittest.TestCase):
    """43"""

    def test_it(self):
        """43, it is."""
        "43"
        # 43
        self.assertEqual(f("# no remark", """nor "this" #""", '#'), 17)  # 43
'''
NODE = b"""import assert from "node:assert"; // 43
/* 43 */ test("it // is no remark", () => {
  const /* 43
  */ all = f("/* nor this */", `// nor this`, /[/*]/, 4 / 2);
  assert.equal(all, 17) // 43
});
"""


def test_python_without_remarks() -> None:
    made = without_remarks("tests/test_a.py", PYTHON)
    assert b"43" not in made
    assert made.startswith(b"#!/usr/bin/env python3\n")
    assert b"""f("# no remark", \"\"\"nor "this" #\"\"\", '#'), 17)""" in made
    assert without_remarks("tests/test_a.py", made) == made
    (site,) = expectations.test_functions(made)[0].sites
    assert site.values == (17,)


def test_docstrings_of_helpers_stay() -> None:
    source = b'''def test_it():
    """43"""
    def command():
        """Adds."""
        "43"
    class Options:
        """Options."""
    assert f(command, Options) == 17


class TestIt:
    """43

    43"""; LAST = 9

    async def test_more(self):
        """43"""
        assert f(9) == 18
'''
    made = without_remarks("a.py", source)
    assert b"43" not in made
    assert b'"""Adds."""' in made
    assert b'"""Options."""' in made
    assert made.count(b"\n") == source.count(b"\n"), "a test may tell the number of a line"
    assert len(expectations.test_functions(made)) == 2


def test_javascript_without_remarks() -> None:
    made = without_remarks("test/a.test.mjs", NODE)
    assert b"43" not in made
    assert made.count(b"\n") == NODE.count(b"\n"), "a statement may end where a line ends"
    assert b'f("/* nor this */", `// nor this`, /[/*]/, 4 / 2)' in made
    assert without_remarks("test/a.test.mjs", made) == made
    assert [one.path for one in javascript.test_functions(made)] == [("it // is no remark",)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("data.txt", b"# 43"),
        ("a.py", b"def f(:  # 43"),
        ("a.py", b"# coding: latin-1\nx = '\xe9'  # 43"),
        ("a.mjs", b"f(); } // 43"),
        ("a.mjs", b"const a = `${b ? `// no remark` : 1}`; // 43"),
        ("a.mjs", b"#!/usr/bin/env node\nf(); // 43"),
    ],
)
def test_what_is_not_understood_stays_whole(path: str, source: bytes) -> None:
    assert without_remarks(path, source) == source


def test_docstrings_that_are_used_stay() -> None:
    source = b'def test_it():\n    """43"""  # 44\n    assert test_it.__doc__ == f()\n'
    assert without_remarks("a.py", source) == source.replace(b"# 44", b"")


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.parent.rglob("*.py"))[::9], ids=lambda path: path.name)
def test_our_own_tests_mean_the_same_without_remarks(path: Path) -> None:
    source = path.read_bytes()
    made = without_remarks(path.name, source)

    def bare(data: bytes) -> str:
        tree = ast.parse(data)
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value = ast.Constant(None)
        return ast.dump(tree)

    assert bare(made) == bare(source)


@given(st.text(alphabet="\"'#\\\n a/*`${}()=r", max_size=40))
def test_nothing_is_too_odd(text: str) -> None:
    for name in ("a.py", "a.mjs"):
        without_remarks(name, text.encode())
