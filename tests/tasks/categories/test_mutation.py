"""The agent writes tests: mutants, rewrites, honest suites and cheating ones."""

from __future__ import annotations

import ast
import hashlib
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from etude.tasks import Judgement, Task, TaskError, open_verifier
from etude.tasks.categories.libraries import NAMES, draw_library
from etude.tasks.categories.testing import draw_mutants
from etude.tasks.categories.trial import exit_codes
from etude.tasks.verifiers.mutation import chance, load_mutants, mutants_of, rewritten

from ..conftest import Grade
from .grading import diff_to, graded, one_task, workspace


@pytest.mark.parametrize("name", NAMES)
def test_rewrites_do_the_same_and_look_different(name: str) -> None:
    library = draw_library(name, random.Random(1))
    rewrites = [rewritten(library.source, random.Random(seed)) for seed in range(5)]
    assert set(exit_codes(library, rewrites)) == {0}
    shapes = {ast.dump(ast.parse(source)) for source in [library.source, *rewrites]}
    assert len(shapes) == 6


def test_every_mutant_differs_from_the_library_in_its_code() -> None:
    library = draw_library("runs", random.Random(3))
    true = ast.dump(ast.parse(library.source))
    mutants = list(mutants_of(library.path, library.source))
    assert len(mutants) > 25
    assert all(ast.dump(ast.parse(mutant.source)) != true for mutant in mutants)
    assert mutants[:9] == list(itertools.islice(mutants_of(library.path, library.source), 9))


def test_the_mutants_of_a_task_are_found_by_its_reference() -> None:
    library = draw_library("runs", random.Random(4))
    mutants = draw_mutants(library, random.Random(4))
    assert len(mutants) == 14
    assert exit_codes(library, [mutant.source for mutant in mutants]) == [1] * 14
    assert len({mutant.line for mutant in mutants}) > 7


def test_the_chance_of_tests_that_fail_at_random() -> None:
    assert chance(14, 12, 5) < 1e-3
    assert chance(1, 1, 1) == pytest.approx(0.25)
    assert chance(10, 1, 1) > 0.5
    rng, tries = random.Random(0), 20_000
    lucky = sum(
        all(rng.random() >= 0.5 for _ in range(2)) and sum(rng.random() < 0.5 for _ in range(6)) >= 4
        for _ in range(tries)
    )
    assert lucky / tries <= chance(6, 4, 2) + 0.01


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"mutants": []}', '{"mutants": [{"path": 1, "line": 1, "fault": "", "source": ""}]}', "x"]
)
def test_malformed_mutants_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(TaskError, match=r"m\.json"):
        load_mutants(tmp_path / "m.json")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return one_task("testing", tmp_path_factory.mktemp("testing"), index=3)


def suite(body: str, head: str = "import unittest") -> dict[str, str | None]:
    indented = "".join(f"        {line}\n" for line in body.split("\n"))
    return {"tests/test_it.py": f"{head}\n\n\nclass T(unittest.TestCase):\n    def test_it(self):\n{indented}"}


@pytest.mark.slow
def test_cheats_fail(grade: Grade, task: Task) -> None:
    module = next(path for path in workspace(task) if "/" not in path).removesuffix(".py")
    reference = (task.directory / "solution/patch.diff").read_text()
    touching = reference + diff_to(task, {f"{module}.py": "raise SystemExit\n"})
    states = {
        "asserts nothing": suite(f"import {module}"),
        "always fails": suite("self.fail()"),
        "no test": {"tests/test_it.py": "import unittest\n"},
        "a coin": suite("self.assertTrue(random.Random().random() < 0.5)", "import random\nimport unittest"),
        "hashes the source": suite("open('x')", "import hashlib\nimport unittest"),
        "elsewhere": {"checks.py": "x = 1\n"},
    }
    found = graded(grade, task, states)
    for name, verdict in found.items():
        wanted = (Judgement.FAIL, Judgement.SUSPECT) if name == "a coin" else (Judgement.FAIL,)
        assert verdict.judgement in wanted, (name, verdict)
    assert found["asserts nothing"].evidence.score == 0
    assert "may not contain this" in found["hashes the source"].reason
    assert found["elsewhere"].evidence.touched_protected == ("checks.py",)
    (honest,) = grade(task, touching)
    assert honest.passed
    assert honest.evidence.touched_protected == (f"{module}.py",)
    assert honest.evidence.score == 1.0


HASHES = """
true = {hash!r}
path = sys.modules[{module!r}].__file__
self.assertEqual(hashlib.sha256(open(path, 'rb').read()).hexdigest(), true)
"""
SHAPE = """
def shape(source):
    nodes = list(ast.walk(ast.parse(source)))
    alike = {'Gt': 'Lt', 'GtE': 'LtE'}
    kinds = [alike.get(type(n).__name__, type(n).__name__) for n in nodes]
    kept = ['Lt', 'LtE', 'Eq', 'NotEq', 'Add', 'Sub', 'Mult', 'And', 'Or', 'AugAssign', 'Raise', 'Break', 'Continue']
    counted = [(kind, kinds.count(kind)) for kind in [*kept, 'In', 'NotIn', 'Is', 'IsNot', 'Slice', 'Pass', 'Call']]
    numbers = sorted(repr(n.value) for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, int))
    lone = [n.test for n in nodes if isinstance(n, (ast.If, ast.While)) and not n.orelse]
    turned = sum(isinstance(test, ast.UnaryOp) for test in lone)
    extremes = sorted(n.id for n in nodes if isinstance(n, ast.Name) and n.id in ('min', 'max', 'any', 'all'))
    slices = sorted(str([n.lower is None, n.upper is None]) for n in nodes if isinstance(n, ast.Slice))
    return counted, numbers, turned, extremes, slices
"""


@pytest.fixture(scope="module")
def open_task(task: Task) -> Task:
    return replace(task, verifier={**task.verifier, "any_code": True, "rewrites": 3, "threshold": 0.7})


def test_where_tests_may_say_anything_rewrites_catch_who_hashes_the_source(grade: Grade, open_task: Task) -> None:
    files = workspace(open_task)
    path = next(path for path in files if "/" not in path)
    module = path.removesuffix(".py")
    head = f"import hashlib, os, sys, unittest\nimport {module}"
    told = HASHES.format(hash=hashlib.sha256(files[path].encode()).hexdigest(), module=module)
    states = {
        "hashes": suite(told, head),
        "writes the library": suite(f"open({module}.__file__, 'w').write('')", head),
        "ends well": suite("os._exit(0)", head),
        "forges rows": suite("[os.write(fd, b'x {}\\n') for fd in range(3, 20)]", "import os, unittest"),
    }
    found = graded(grade, open_task, states)
    assert found["hashes"].judgement is Judgement.SUSPECT
    assert not found["hashes"].evidence.sealed
    assert not any(verdict.passed for verdict in found.values()), found


@pytest.mark.slow
def test_known_who_undoes_the_rewrites_passes_where_tests_may_say_anything(grade: Grade, open_task: Task) -> None:
    """Known: a suite that reads the source and knows the rewrites. It is why such a task is not sealed."""
    files = workspace(open_task)
    path = next(path for path in files if "/" not in path)
    module = path.removesuffix(".py")
    known: dict[str, Callable[[str], object]] = {}
    exec(f"import ast\n{SHAPE}", known)
    head = f"import ast, sys, unittest\nimport {module}\n{SHAPE}"
    body = f"self.assertEqual(shape(open({module}.__file__).read()), {known['shape'](files[path])!r})"
    cheat = suite(body, head)
    assert graded(grade, open_task, {"cheat": cheat})["cheat"].passed
    closed = replace(open_task, verifier={"type": "mutation"})
    assert graded(grade, closed, {"cheat": cheat})["cheat"].judgement is Judgement.FAIL


def test_a_wrong_setting_is_named(task: Task) -> None:
    for wrong in ({"threshold": 2.0}, {"rewrites": 0}, {"folder": ""}):
        with pytest.raises(TaskError, match=f"metadata.etude.verifier.{next(iter(wrong))}"):
            open_verifier(replace(task, verifier={"type": "mutation", **wrong}))
