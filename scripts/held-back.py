#!/usr/bin/env python3
"""Counts the assertions in Python test files whose expected answer can be held back: `held-back.py FOLDER_OR_FILE...`

Prints one line per argument. `packages`, `libraries` and `migrations` stand for the suites of Étude's own tasks.
`asserts`: number of assertions. In per cent of them, `held`: the answer can be held back; `versions`: it can only be
asked in several versions; `neither`. `tests`: number of test functions. `sealed`: per cent of them whose held-back
answers together are hard to guess for who sees the rest of the file, so that a task to pass that one test would be
sealed. Tests are not run: assertions that the proof with a reference solution would exclude are counted too, and
nothing is known of the package's literals or of unsolved code, from which answers may be guessed.
"""

from __future__ import annotations

import ast
import random
import sys
from pathlib import Path

from etude.tasks.categories.libraries import NAMES, draw_library
from etude.tasks.categories.migrations import options, tables
from etude.tasks.categories.packages import PYTHON, package_of
from etude.tasks.verifiers.tests import expectations
from etude.tasks.verifiers.tests.chances import chance_of_all
from etude.tasks.verifiers.tests.drawing import SEALED
from etude.tasks.verifiers.tests.expectations import TestFunction
from etude.tasks.verifiers.tests.guessing import askers_of, ways_of
from etude.tasks.verifiers.tests.known_text import KnownText
from etude.tasks.verifiers.tests.pool import AlterableTest
from etude.tasks.verifiers.tests.pricing import without_withheld

_FILE = "test_a.py"
"""Any name: of a file, only its ending matters here."""


def assertions(tree: ast.AST) -> int:
    """Number of assertions in test functions: assert statements, calls of assert... methods, and `raises` blocks."""
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sum(
        isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and _asserts(node.func))
        for test in tests
        if test.name.startswith("test")
        for node in ast.walk(test)
    )


def _asserts(function: ast.expr) -> bool:
    name = getattr(function, "attr", getattr(function, "id", ""))
    return name.startswith("assert") or name == "raises"


def sources(place: str) -> list[bytes]:
    if place == "packages":
        return [source for kin in PYTHON for source in package_of(kin).tests.values()]
    if place == "libraries":
        return [draw_library(name, random.Random(0), whole=True).tests.encode() for name in NAMES]
    if place == "migrations":
        programs = [options.draw(subject, random.Random(0)) for subject in options.SUBJECTS]
        return [program.tests.encode() for program in (*programs, tables.draw(random.Random(0)))]
    path = Path(place)
    files = [path] if path.is_file() else sorted({*path.rglob("test*.py"), *path.rglob("*_test.py")})
    return [file.read_bytes() for file in files]


def text_in_box(source: bytes, functions: list[TestFunction]) -> KnownText:
    held = {one: tuple(site for site in one.sites if site.statement) for one in functions}
    items = [AlterableTest(_FILE, one, (), True, withheld=sites) for one, sites in held.items()]
    try:
        return KnownText([without_withheld(_FILE, source, items)])
    except ValueError:  # Not all of these can be held back at once.
        return KnownText([source])


def main(places: list[str]) -> None:
    print(f"{'':30} asserts  held  versions  neither  tests  sealed")
    for place in places:
        counts = [0, 0, 0, 0, 0]
        for source in sources(place):
            try:
                counts[0] += assertions(ast.parse(source))
            except (SyntaxError, ValueError):  # Such as a null byte.
                continue
            functions = expectations.test_functions(source)
            known = text_in_box(source, functions)
            for function in functions:
                held = [site for site in function.sites if site.statement]
                counts[1] += len(held)
                counts[2] += len(function.sites) - len(held)
                counts[3] += 1
                ways = [
                    ways_of(value, (), known, askers_of(source[slice(*site.compared)], value))
                    for site in held
                    for value in site.values
                ]
                counts[4] += chance_of_all(ways) <= SEALED
        total, tests = max(1, counts[0]), max(1, counts[3])
        shares = [100 * counts[1] / total, 100 * counts[2] / total]
        print(
            f"{Path(place).name:30} {counts[0]:7} {shares[0]:5.1f} {shares[1]:9.1f} {100 - sum(shares):8.1f}"
            f" {counts[3]:6} {100 * counts[4] / tests:7.1f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
