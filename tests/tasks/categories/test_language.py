from __future__ import annotations

import pytest

from etude.tasks.verifiers.language import own_names, problems

LIBRARY = {"runs": frozenset(("encode", "decode")), "pack.age": frozenset(("make",))}
HONEST = """
import unittest
from collections import Counter
from random import Random

import runs
from pack.age import make


class RunsTest(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self._texts = ["a", "bb"]

    @classmethod
    def setUpClass(cls):
        cls.longest = 3

    def test_of_names_that_test_cases_have(self):
        run, debug, fail = runs.encode("aa"), 1, [number for number in range(self.longest)]
        self.addCleanup(fail.clear)
        self.assertEqual(run, "2a")

    def test_it(self):
        for text in self._texts:
            with self.subTest(text=text):
                self.assertEqual(runs.decode(runs.encode(text)), text)
        with self.assertRaises(ValueError) as caught:
            runs.decode("a3")
        self.assertIn("3", str(caught.exception))
        self.assertEqual("{} {:>3}".format(1, 2), f"{1} {2:>3}")
        self.assertEqual(Counter("aab")["a"], Random(3).choice([2]))


if __name__ == "__main__":
    unittest.main()
"""


def test_an_honest_suite_is_of_the_language() -> None:
    assert problems(HONEST, LIBRARY) == []


@pytest.mark.parametrize(
    "code",
    [
        "import inspect",
        "from unittest import mock",
        "import unittest.mock",
        "import runs.os",
        "import pack.age",
        "from runs import *",
        "from runs import _split",
        "from . import runs",
        "import unittest as load_tests",
        "import runs\nruns._split",
        "import runs\nruns.os",
        "import runs\nx = runs",
        "import unittest\nunittest.case.sys",
        "import unittest\nunittest.main(argv=['x', 'runs.encode.__code__.co_code.hex'])",
        "import datetime\ndatetime.sys",
        "from datetime import datetime\ndatetime.now()",
        "open('runs.py')",
        "eval('1')",
        "__import__('os')",
        "getattr(f, 'x')",
        "type('X', (), {})",
        "f.__code__",
        "'{0.__code__.co_code}'.format(f)",
        "'{0[x]}'.format(f)",
        "x = '{0._' + '_code__}'\nx.format(f)",
        "f'{f.__code__}'",
        "def g(self): return self.gi_frame",
        "def g(self): return self.__class__",
        "def g(self): return self._outcome",
        "try: f()\nexcept ValueError as e: e.__traceback__.tb_frame",
        "def load_tests(loader, tests, pattern): pass",
        "load_tests = f",
        "class A:\n    def __eq__(self, other): return True",
        "class A:\n    def __getattr__(self, name): return 1",
        "class A(metaclass=B): pass",
        "match f:\n    case object(__code__=c): pass",
        "def t(self): self.addTypeEqualityFunc(str, 'x')",
        "def t(self): self.defaultTestResult()",
        "def t(self):\n    other = self\n    other.run()",
        "T('test_it').run()",
        "T.defaultTestResult",
        "def t(self): super().run()",
        "def t(self): self._addExpectedFailure",
        "def t(self): self._cleanups",
        "class T(TestCase):\n    def run(self, result): result.errors",
        "class M:\n    def run(self, result): result.errors\nclass T(M, TestCase): pass",
        "class T(TestCase):\n    run = f",
        "class T(TestCase):\n    for run in [f]: pass",
        "class T(TestCase):\n    import runs as run",
        "class T(TestCase):\n    x = [run := f]",
        "class T(TestCase):\n    class run: pass",
        "class T(TestCase):\n    match f:\n        case run: pass",
        "class T(TestCase):\n    def defaultTestResult(self): pass",
        "class T(TestCase):\n    def _callTestMethod(self, method): pass",
        "def t(self):\n    with self.assertLogs() as caught: pass",
        "def t(self):\n    with self.assertWarns(Warning) as caught: pass",
        "def t(cls): cls.run = f",
        "hash(f)",
        "__builtins__",
        "def f(:",
        "(" * 500,
    ],
)
def test_what_could_look_at_the_source_is_refused(code: str) -> None:
    assert problems(code, LIBRARY, "t.py")[0].startswith("t.py:")


def test_a_module_lends_what_it_makes_and_not_what_it_imports() -> None:
    source = "import os\nfrom sys import path\nA, _B = 1, 2\nC: int = 3\ndef f(): pass\nclass D: pass\ndef _g(): pass"
    assert own_names(source) == {"A", "C", "f", "D"}
