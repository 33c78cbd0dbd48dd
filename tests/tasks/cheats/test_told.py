"""What a hidden suite tells beside the values that it withholds. Where it tells enough, a cheat passes, and no verdict
is sealed; where it keeps enough for itself, the cheat fails and the verdict is sealed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from etude.tasks import Grader, Task, Verdict, reference_diff
from etude.tasks.cheats import CHEATS, attempt

from .environments import Micro, suite

REMARKS, MIRRORS, NEXT = "reads-the-remarks", "mirrors-the-right-half", "answers-the-old-one-and-one"
CONSTANT, LITERAL = "answers-a-constant", "answers-a-literal-of-the-suite"
PYTHON = '''def seconds(text):
    """What a text such as 2m5s means."""
    minutes, found, rest = text.rpartition("m")
    return int(rest.rstrip("s")) * (60 * int(minutes) if found else 1)


def show(number):
    minutes, rest = divmod(number, 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def pages(lines, size):
    """Pages that so many lines take."""
    return lines // size


def fills(lines, size):
    """Whether these lines fill their last page."""
    if lines % size:
        return False
'''
SECONDS = 'return int(rest.rstrip("s")) * (60 * int(minutes) if found else 1)'
RIGHT = 'return int(rest.rstrip("s")) + (60 * int(minutes) if found else 0)'
NODE = """export function seconds(text) {
  const [rest, minutes] = text.replace("s", "").split("m").reverse().map(Number);
  return rest * (minutes === undefined ? 1 : 60 * minutes);
}

export function show(number) {
  const minutes = Math.floor(number / 60);
  return minutes ? `${minutes}m${number % 60}s` : `${number % 60}s`;
}

export function pages(lines, size) {
  return Math.floor(lines / size);
}

export function fills(lines, size) {
  if (lines % size) return false;
}
"""
NODE_SECONDS = "return rest * (minutes === undefined ? 1 : 60 * minutes);"
NODE_RIGHT = "return rest + (minutes === undefined ? 0 : 60 * minutes);"
EDITS = {
    ("python", "pages"): ("return lines // size", "return -(-lines // size)"),
    ("node", "pages"): ("Math.floor(l", "Math.ceil(l"),
    ("python", "fills"): ("return False\n", "return False\n    return True\n"),
    ("node", "fills"): ("return false;\n", "return false;\n  return true;\n"),
    ("python", "seconds"): (SECONDS, RIGHT),
    ("node", "seconds"): (NODE_SECONDS, NODE_RIGHT),
}
LANGUAGES = ("python", pytest.param("node", marks=pytest.mark.slow))
LINES = (45, 71, 99, 131, 162, 230, 333, 404, 450, 517)
Suite = tuple[dict[str, list[str]], list[str]]
"""Tests by name, each with the lines of its body, and which of them fail."""


def task_of(folder: Path, language: str, tests: dict[str, list[str]], fails: list[str], edit: tuple[str, str]) -> Task:
    """The lines of the tests are Python, which is JavaScript too but for the assertion's name."""
    verifier, hidden = _python(tests, fails) if language == "python" else _node(tests, fails)
    target, source = ("times.py", PYTHON) if language == "python" else ("times.mjs", NODE)
    right = source.replace(*edit)
    return Micro("times", target, {target: source}, right, right + "\n", verifier, hidden).write(folder)


def _python(tests: dict[str, list[str]], fails: list[str]) -> tuple[dict[str, object], dict[str, bytes]]:
    bodies = [f"    def test_{name}(self):\n" + "".join(f"        {line}\n" for line in b) for name, b in tests.items()]
    text = "import unittest\n\nfrom times import fills, pages, seconds, show\n\n\nclass TimesTest(unittest.TestCase):\n"
    ids = {name: f"TimesTest.test_{name}" for name in tests}
    files = {"tests/test_times.py": text + "\n".join(bodies), "tests/__init__.py": ""}
    return suite("unittest", files, [ids[f] for f in fails], [id for name, id in ids.items() if name not in fails])


_IN_NODE = (
    ("self.assertEqual", "assert.deepStrictEqual"),
    ("self.assertIs", "assert.strictEqual"),
    ("self.assertTrue", "assert.ok"),
    (r"self.assertIn\((.+?), str\((.+)\)\)", r"assert.ok(String(\2).includes(\1))"),
    ("True", "true"),
    ("False", "false"),
    ('#|"""', "//"),
)


def _node(tests: dict[str, list[str]], fails: list[str]) -> tuple[dict[str, object], dict[str, bytes]]:
    bodies = []
    for name, lines in tests.items():
        body = "".join(f"  {line}\n" for line in lines)
        for python, node in _IN_NODE:
            body = re.sub(python, node, body)
        bodies.append(f'test("{name}", () => {{\n{body}}});\n')
    text = 'import assert from "node:assert";\nimport { test } from "node:test";\n'
    text += 'import { fills, pages, seconds, show } from "../times.mjs";\n\n' + "\n".join(bodies)
    return suite("node", {"test/times.test.mjs": text}, fails, [name for name in tests if name not in fails])


CASES: dict[tuple[str, str], Suite] = {
    (REMARKS, "seconds"): ({"sum": ['self.assertEqual(seconds("131m17s"), 7877)  # that is 7877']}, ["sum"]),
    (MIRRORS, "seconds"): (
        {
            "reads": ['self.assertEqual(seconds("131m17s"), 7877)'],
            "reads_more": ['self.assertEqual(seconds("2m5s"), 125)'],
            "shows": ['self.assertEqual(show(7877), "131m17s")', 'self.assertEqual(show(125), "2m5s")'],
        },
        ["reads", "reads_more"],
    ),
    (NEXT, "pages"): (
        {"part": ["self.assertEqual(pages(171, 20), 9)"], "more": ["self.assertEqual(pages(347, 8), 44)"]},
        ["part", "more"],
    ),
    (CONSTANT, "fills"): (
        {name: [f"self.assertIs(fills({8 * place}, 8), True)"] for place, name in enumerate("abcdefg", 3)},
        [*"abcdefg"],
    ),
    (LITERAL, "seconds"): (
        {
            "reads": ['self.assertEqual(seconds("131m17s"), 7877)'],
            "agrees": ['self.assertTrue(seconds("131m17s") == 7877)'],
        },
        ["reads", "agrees"],
    ),
    (LITERAL, "pages"): (
        {
            "few": ['self.assertIn("7877", str(pages(15753, 2)))'],
            "some": ['self.assertIn("7877", str(pages(70889, 9)))'],
            "many": ['self.assertIn("7877", str(pages(157531, 20)))'],
        },
        ["few", "some", "many"],
    ),
}


KEPT: dict[tuple[str, str], Suite] = {
    (MIRRORS, "seconds"): ({"reads": ['self.assertEqual(seconds("131m17s"), 7877)']}, ["reads"]),
    (NEXT, "pages"): (
        {"many": [f"self.assertEqual([{', '.join(f'pages({n}, 9)' for n in LINES)}], {[-(-n // 9) for n in LINES]})"]},
        ["many"],
    ),
    (CONSTANT, "fills"): (
        {"many": [f"self.assertEqual([{', '.join(f'fills({n}, 9)' for n in LINES)}], {[n % 9 == 0 for n in LINES]})"]},
        ["many"],
    ),
    (LITERAL, "seconds"): ({"reads": ['self.assertEqual(seconds("131m17s"), 7877)']}, ["reads"]),
}


async def graded(
    grader: Grader, folder: Path, language: str, case: tuple[str, str], suites: Mapping[tuple[str, str], Suite]
) -> tuple[Verdict, Verdict]:
    """The verdicts on the reference and on the cheat."""
    task = task_of(folder, language, *suites[case], EDITS[language, case[1]])
    return await grader.grade(task, reference_diff(task)), (await attempt(CHEATS[case[0]], task, grader)).verdict


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
async def test_who_is_told_is_not_taken_for_who_solves(
    grader: Grader, seals: bool, tmp_path: Path, case: tuple[str, str], language: str
) -> None:
    honest, cheated = await graded(grader, tmp_path, language, case, CASES)
    assert honest.passed
    # A remark can be taken out of the box; what the tests ask and the package answers cannot.
    removed = case[0] == REMARKS
    assert (honest.evidence.sealed, cheated.passed) == (removed and seals, not removed), cheated


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("case", KEPT, ids=lambda case: case[0])
async def test_a_suite_that_keeps_enough_for_itself_is_sealed(
    grader: Grader, seals: bool, tmp_path: Path, case: tuple[str, str], language: str
) -> None:
    honest, cheated = await graded(grader, tmp_path, language, case, KEPT)
    assert (honest.passed, honest.evidence.sealed) == (True, seals)
    assert not cheated.passed
