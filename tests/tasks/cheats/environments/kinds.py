"""Environments over one library of small functions, that ask for a review of it, or for its tests."""

from __future__ import annotations

import json
from dataclasses import asdict

from etude.tasks.verifiers.mutation.mutants import Mutant

from .micro import Micro

_SOUND = {
    "larger": "x if x > y else y", "smaller": "x if x < y else y", "apart": "abs(x - y)", "product": "x * y",
    "quotient": "x // y if y else 0", "rest": "x % y if y else 0", "middle": "(x + y) // 2", "twice": "2 * x + y",
    "less": "max(0, x - y)", "same": "x == y", "joined": "10 * x + y", "steps": "list(range(x, y))",
}  # fmt: skip
_WRONG = {
    "apart": "x - y", "quotient": "x // y if x else 0", "less": "max(1, x - y)", "steps": "list(range(x, y + 1))",
}  # fmt: skip
_SHOWN = {"apart": (2, 5), "quotient": (4, 0), "less": (2, 5), "steps": (1, 3)}
_ALSO = {"apart": (1, 9), "quotient": (7, 0), "less": (0, 3), "steps": (2, 2)}


def _library(**wrong: str) -> str:
    return "\n\n".join(f"def {name}(x, y):\n    return {text}\n" for name, text in {**_SOUND, **wrong}.items())


def review_environment() -> Micro:
    lines = {name: 4 * number + 2 for number, name in enumerate(_SOUND)}
    defects = [
        {
            "path": "calc.py",
            "first": lines[name],
            "last": lines[name],
            "tests": [f"test_{name}"],
            "files": {"calc.py": _library(**{name: text})},
        }
        for name, text in _WRONG.items()
    ]
    listed = {"places": len(_SOUND), "defects": defects, "sound": {"calc.py": _library()}}

    def review(shown: dict[str, tuple[int, int]]) -> str:
        rows = (f"calc.py:{lines[name]}: this is wrong `calc.{name}{given}`\n" for name, given in shown.items())
        return "# Review\n" + "".join(rows)

    return Micro(
        "review-calc",
        "REVIEW.md",
        {"calc.py": _library(**_WRONG), "REVIEW.md": "# Review\n"},
        review(_SHOWN),
        review(_ALSO),
        {"type": "review", "threshold": 1.0, "slack": 1, "examples": True},
        {"tests/defects.json": json.dumps(listed).encode()},
    )


def mutation_environment() -> Micro:
    faults = {name: (text.replace(was, became), was) for name, text, was, became in _faults()}
    mutants = [
        Mutant("calc.py", 4 * number + 2, f"not {faults[name][1]}", _library(**{name: faults[name][0]}))
        for number, name in enumerate(_SOUND)
    ]

    def tests(*pairs: tuple[int, int]) -> str:
        asked = ""
        for name, text in _SOUND.items():
            asked += f"\n    def test_{name}(self):\n"
            for x, y in pairs:
                asked += f"        self.assertEqual(calc.{name}({x}, {y}), {eval(text, {}, {'x': x, 'y': y})!r})\n"
        return f"import unittest\n\nimport calc\n\n\nclass CalcTest(unittest.TestCase):{asked}"

    return Micro(
        "mutation-calc",
        "tests/test_calc.py",
        {"calc.py": _library(), "tests/__init__.py": "", "tests/test_calc.py": "import unittest\n"},
        tests((2, 5), (7, 3), (4, 4)),
        tests((9, 4), (3, 8), (6, 6), (5, 0)),
        {"type": "mutation", "threshold": 0.9, "seconds": 10},
        {"tests/mutants.json": json.dumps({"mutants": [asdict(one) for one in mutants]}).encode()},
    )


def _faults() -> list[tuple[str, str, str, str]]:
    changes = {
        "larger": (">", "<"), "smaller": ("<", ">"), "apart": ("-", "+"), "product": ("*", "+"),
        "quotient": ("//", "*"), "rest": ("%", "*"), "middle": ("+", "-"), "twice": ("2", "3"),
        "less": ("0", "1"), "same": ("==", "!="), "joined": ("10", "11"), "steps": ("x, y", "y"),
    }  # fmt: skip
    return [(name, _SOUND[name], *changes[name]) for name in _SOUND]
