"""The agent restructures code: what is measured, honest solutions and cheating ones."""

from __future__ import annotations

import ast
import functools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.tasks import Judgement, Task, TaskError, open_verifier
from etude.tasks.categories.computed_cases import TEST
from etude.tasks.categories.libraries import NAMES, draw_library
from etude.tasks.categories.refactor import _hidden, with_copies
from etude.tasks.categories.trial import exit_codes
from etude.tasks.verifiers.refactor import Measures, measure
from etude.tasks.verifiers.refactor.interface import changes, hidden_code_risks

from ..conftest import Grade
from .grading import graded, one_task, solution, workspace


def measured(source: str | ast.AST) -> Measures:
    return measure({"m.py": source if isinstance(source, str) else ast.unparse(ast.fix_missing_locations(source))})


@functools.cache
def variants(name: str, seed: int) -> tuple[str, str]:
    """A library, and the same with copies in it."""
    library = draw_library(name, random.Random(seed), whole=True)
    return library.source, with_copies(library.source, random.Random(seed))


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            found = getattr(node, field, None)
            if isinstance(found, list) and found and not isinstance(node, ast.Module | ast.ClassDef):
                yield found


def moved_away(tree: ast.Module, body: list[ast.stmt]) -> ast.expr:
    """The call of a new function with this body. The cheapest there could be: it takes and gives back nothing."""
    tree.body.append(ast.FunctionDef("_moved", ast.arguments([], [], None, [], [], None, []), body, []))
    return ast.Call(ast.Name("_moved", ast.Load()), [], [])


@pytest.mark.parametrize("name", NAMES)
def test_some_answers_stand_in_no_test_that_the_agent_sees(name: str) -> None:
    _, ids = _hidden(draw_library(name, random.Random(2), whole=True), random.Random(2))
    assert ids[-1].endswith(TEST)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(NAMES), st.booleans(), st.data())
def test_moving_statements_into_a_function_called_once_never_helps(
    name: str, tangled: bool, data: st.DataObject
) -> None:
    tree = ast.parse(variants(name, 1)[tangled])
    before = measured(tree)
    block = data.draw(st.sampled_from(list(blocks(tree))))
    start = data.draw(st.integers(0, len(block) - 1))
    end = data.draw(st.integers(start + 1, len(block)))
    moved = block[start:end]
    block[start:end] = [ast.Expr(moved_away(tree, moved))]
    after = measured(tree)
    text_alone = all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in moved)
    assert after.size > before.size
    assert after.duplicated >= before.duplicated or text_alone


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(NAMES), st.booleans(), st.data())
def test_moving_an_expression_never_helps(name: str, tangled: bool, data: st.DataObject) -> None:
    tree = ast.parse(variants(name, 2)[tangled])
    before = measured(tree)
    places = [
        (node, field)
        for node in ast.walk(tree)
        for field in ("value", "test", "iter", "left", "operand")
        if isinstance(getattr(node, field, None), ast.expr) and not isinstance(getattr(node, field), ast.Constant)
    ]
    node, field = data.draw(st.sampled_from(places))
    setattr(node, field, moved_away(tree, [ast.Return(getattr(node, field))]))
    assert measured(tree).size > before.size


def test_the_same_in_fewer_signs_is_as_often_there() -> None:
    loops = [
        f"def f{n}(rows):\n    found = []\n    for row in rows:\n        found.append(row * 2 + 1)\n" for n in range(3)
    ]
    golfed = [f"def f{n}(rows):\n    found = [row * 2 + 1 for row in rows]\n" for n in range(3)]
    long, short = (measured("".join(f"{text}    return found\n" for text in texts)) for texts in (loops, golfed))
    assert short.size < long.size
    assert short.duplicated >= long.duplicated > 0


@pytest.mark.parametrize("name", NAMES[::3])
def test_planted_copies_change_nothing_and_to_remove_them_helps_in_every_way(name: str) -> None:
    library = draw_library(name, random.Random(3), whole=True)
    source, copies = variants(name, 3)
    assert exit_codes(library, [copies]) == [0]
    assert list(changes(copies, source)) == list(changes(source, copies)) == []
    clean, tangled = measured(source), measured(copies)
    assert clean.size < 0.9 * tangled.size
    assert clean.duplicated < tangled.duplicated
    assert clean.complexity <= tangled.complexity


def test_names_layout_and_comments_weigh_nothing_and_texts_their_length() -> None:
    one = measured("def f(a):\n    # why\n    return (a +\n        1)\n")
    assert one == measured("def f(much_longer): return much_longer + 1")
    for long, short in (("z" * 120, "z" * 6), (10**119, 10**5)):
        assert measured(f"x = {long!r}").size - measured(f"x = {short!r}").size == 19
    assert measured('def f():\n    """Long words of documentation."""\n    return 1') == measured("def f(): return 1")


def test_complexity_counts_what_a_function_may_call() -> None:
    whole = "def f(a):\n    if a:\n        return 1\n    return 2 if a > 3 else 4\n"
    cut = "def _g(a):\n    return 2 if a > 3 else 4\ndef f(a):\n    if a:\n        return 1\n    return _g(a)\n"
    hidden = "_g = lambda a: 2 if a > 3 else 4\ndef f(a):\n    if a:\n        return 1\n    return _g(a)\n"
    assert measured(whole).complexity == measured(cut).complexity == measured(hidden).complexity == 2


INTERFACE = '''
import os
LIMIT = 3
def f(a, b=1, *c, d=2):
    """Doc."""
class C:
    def __init__(self, x): ...
    def m(self): ...
    def _own(self): ...
def _g(): ...
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b=1", "b=2"),
        ("def f(a, ", "def f("),
        ("d=2", "e=2"),
        ("LIMIT", "_LIMIT"),
        ("def m(", "def n("),
        ("self, x", "self"),
        ("def f(", "async def f("),
        ('    """Doc."""', "    pass"),
        ("class C:", "class C(Exception):"),
        ("def _g", "def g"),
    ],
)
def test_a_changed_interface_is_noticed(old: str, new: str) -> None:
    assert list(changes(INTERFACE, INTERFACE)) == []
    assert list(changes(INTERFACE, INTERFACE.replace(old, new)))


def test_what_is_moved_to_another_module_and_imported_is_still_there() -> None:
    moved = INTERFACE.replace("LIMIT = 3", "from other import LIMIT").replace("def _g(): ...", "")
    assert list(changes(INTERFACE, moved)) == []
    assert hidden_code_risks(INTERFACE, moved + "import os, functools", ["other"]) == []
    assert hidden_code_risks(INTERFACE, moved) == ["other"]
    hidden = ("exec('x')", "import importlib", "f.__code__", "from os import eval", "getattr(f, 'x')", "import runpy")
    for code in hidden:
        assert hidden_code_risks(INTERFACE, INTERFACE + code)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return one_task("refactor", tmp_path_factory.mktemp("refactor"), index=4)


NO_ASSERTS = "\nimport unittest\nunittest.TestCase.assertEqual = lambda self, *rest: None\n"


@pytest.mark.slow
def test_cheats_fail(grade: Grade, task: Task) -> None:
    path = next(path for path in workspace(task) if "/" not in path)
    tangled, solved = workspace(task)[path], solution(task)[path]
    test = next(path for path in workspace(task) if path.startswith("tests/test_"))
    public = next(node.name for node in ast.parse(solved).body if getattr(node, "name", "_")[0] != "_")
    states: dict[str, dict[str, str | None]] = {
        "leaves it": {path: tangled + "\n"},
        "runs a text": {path: f"exec({tangled!r})\n"},
        "runs a text in its names": {path: solved + f"exec({tangled!r})\n"},
        "keeps code in data": {path: "import json\nexec(json.load(open('code.json')))\n", "code.json": f"{tangled!r}"},
        "moves it away": {path: "from other import *\n", "other.py": tangled},
        "does less": {path: solved.replace("raise ValueError", "ValueError")},
        "does less and asserts nothing": {path: solved.replace("raise ValueError", "ValueError") + NO_ASSERTS},
        "changes the interface": {path: solved.replace(f"def {public}(", f"def {public}(_other=1, *, ")},
        "takes it out": {path: solved[: solved.index(f"def {public}(")]},
        "breaks it": {path: solved + "def (\n"},
        "changes the tests": {path: tangled, test: "import unittest\n"},
    }
    found = graded(grade, task, states)
    for name, verdict in found.items():
        suspect = name == "does less and asserts nothing" and verdict.judgement is Judgement.SUSPECT
        assert suspect or verdict.judgement is Judgement.FAIL, (name, verdict)
    assert (found["leaves it"].evidence.score, found["leaves it"].evidence.tests_expected) == (0, 0)
    assert found["changes the tests"].evidence.touched_protected == (test,)
    assert "tests failed" in found["does less"].reason
    passed = graded(grade, task, {"honest": {path: solved}})["honest"]
    assert passed.passed
    assert passed.evidence.score >= 1.0


def test_a_wrong_setting_is_named(task: Task) -> None:
    with pytest.raises(TaskError, match=r"metadata\.etude\.verifier\.size"):
        open_verifier(replace(task, verifier={**task.verifier, "size": -1}))
