"""How likely a suite is passed by guessing, from its trial runs on: what one guess gives is not counted twice."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import traceback
from typing import Any

import pytest

from etude.tasks.verifiers.contract import SEALED
from etude.tasks.verifiers.tests import Exam, Suite, SuiteConfig
from etude.tasks.verifiers.tests.drawing import chance_left, choose
from etude.tasks.verifiers.tests.pool import Pool
from etude.tasks.verifiers.tests.proving import prove
from etude.tasks.verifiers.tests.run_output import RunOutput

FILE = "tests/test_a.py"
HEAD = "import pytest\n\n\n"


def rows_of(exam: Exam, code: str) -> bytes:
    """Run the exam's test functions in this process, against a module `a` with this code."""
    module, rows = ast.parse(exam.files[FILE]), list[dict[str, Any]]([{"ready": True}])

    def keeper(key: str, value: object) -> object:
        rows.append({"value": key, "is": repr(value)})
        return value

    answers: dict[str, Any] = {}
    exec(code, answers)
    names: dict[str, Any] = {
        "a": type("a", (), {key: staticmethod(one) for key, one in answers.items()}),
        exam.keeper: keeper,
    }
    exec(compile(module, FILE, "exec"), names)
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            row: dict[str, Any] = {"test": f"{FILE}::{node.name}", "outcome": "passed", "seconds": 0.001}
            try:
                names[node.name]()
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a test may raise anything.
                line = traceback.extract_tb(error.__traceback__)[1].lineno or 0
                row |= {"outcome": "failed", "line": line - node.lineno}
            rows.append(row)
    return "".join(f"n {json.dumps(row)}\n" for row in rows).encode()


def proven(tests: list[str], solved: str, unsolved: str, shown: dict[str, bytes] | None = None) -> Pool:
    """The pool of a suite of these tests, each given by the lines of its body."""
    names = [f"test_{chr(ord('a') + place)}" for place in range(len(tests))]
    texts = [f"def {name}():\n    " + "\n    ".join(body.splitlines()) for name, body in zip(names, tests, strict=True)]
    source = (HEAD + "\n\n\n".join(texts) + "\n").encode()
    suite = Suite(SuiteConfig(runner="pytest"), {FILE: source}, tuple(f"{FILE}::{name}" for name in names))

    async def run(exam: Exam, right: bool) -> RunOutput:
        return RunOutput("n", 1, rows_of(exam, solved if right else unsolved))

    return asyncio.run(prove(suite, {FILE: source}, run, random.Random(1), shown or {}))


NOTHING = "def f(*_): return None\n"
OK = [f"assert a.f({number}) is True" for number in range(7)]
RAISES = [f"with pytest.raises(ValueError):\n    a.f({text!r})" for text in ("x", "y", "z")]
TEXT = "def f(n): return f'total {n} is {943 * n - 4} cents'\n"


@pytest.mark.parametrize(
    ("tests", "solved", "unsolved"),
    [
        pytest.param(OK, "def f(*_): return True\n", NOTHING, id="a constant"),
        pytest.param(RAISES, "def f(*_): raise ValueError\n", NOTHING, id="an exception"),
        pytest.param(
            ["assert 'is 4711' in a.f(5)", "assert '4711 c' in a.f(5)", "assert ' 4711 ' in a.f(5)"],
            TEXT, NOTHING, id="a number in several texts",
        ),
        pytest.param(
            ["assert 4711 in a.f(5)"], "def f(n): return [943 * n - 4]\n", "def f(n): return [943 * n - 5]\n",
            id="a number near the old one",
        ),
        pytest.param(
            ["assert 'cents' in a.f(5)", "assert 'total' in a.f(5)"], TEXT, NOTHING, id="words among misspelt ones"
        ),
        pytest.param(
            ["assert 'is 4711' in a.f(5)", "assert a.g(5) == 4711"],
            TEXT + "def g(n): return 943 * n - 4\n", NOTHING + "def g(n): return n\n", id="what another test shows",
        ),
    ],
)  # fmt: skip
def test_what_one_guess_gives_counts_once(tests: list[str], solved: str, unsolved: str) -> None:
    assert chance_left(proven(tests, solved, unsolved)) > SEALED


def test_a_number_that_nothing_tells_is_hard() -> None:
    assert (
        chance_left(proven(["assert 4711 in a.f(5)"], "def f(_): return [4711]\n", "def f(_): return []\n")) <= SEALED
    )


def test_a_guess_for_some_tests_and_chance_for_the_others_are_counted_together() -> None:
    tests = [*OK, "assert 4711 in a.g()"]
    pool = proven(tests, "def f(*_): return True\ndef g(): return [4711]\n", NOTHING + "def g(): return []\n")
    counts, left = choose(pool, random.Random(1))
    (copies,) = (count for item, count in counts.items() if item.function.path[-1] == "test_h")
    assert left == pytest.approx(0.5 / (copies + 1))


@pytest.mark.parametrize(
    ("path", "text", "known"),
    [
        ("", b"It is 4711.", True),
        ("b.py", b"X = 673 * 7", True),
        ("b.mjs", b"const x = [1, 673 * 7];", True),
        ("b.txt", b"673 * 7", False),
    ],
)
def test_what_the_workspace_says_or_computes_is_known(path: str, text: bytes, known: bool) -> None:
    pool = proven(["assert a.f(5) == 4711"], "def f(_): return 4711\n", NOTHING, {path: text})
    assert (chance_left(pool) > SEALED) == known


def test_a_literal_that_touches_a_keyword_is_priced() -> None:
    pool = proven(['assert"is 4711"in a.f(5)'], TEXT, NOTHING)
    assert len(pool.alterable[0].alterations) == 9
    assert chance_left(pool) == pytest.approx(0.1)
