"""Refactoring tasks: in a small library, every caller of a helper function has its own copy of the helper. The agent
must merge these copies."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Sequence

from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.computed_cases import TEST, with_computed_cases
from etude.tasks.categories.libraries import NAMES, Library, draw_library, mentions, public_functions
from etude.tasks.verifiers.language import module_name
from etude.tasks.verifiers.mutation.rewrites import rename_locals
from etude.tasks.verifiers.refactor import measure
from etude.tasks.verifiers.tests import suite_files

SHARE = 0.7
"""The reference solution makes the code smaller, and reduces the duplicated part. An agent's solution must reach this
fraction of each of these two reductions."""
_SHARED = "shared.py"


class RefactorSource(CategorySource):
    name = "refactor"
    version = 3
    category = "refactor"

    def kins(self) -> Sequence[str]:
        return NAMES

    def draft(self, kin: str, rng: random.Random) -> Draft:
        # A helper may be tested only through one public function, so no function is left out.
        library = draw_library(kin, rng, whole=True)
        tangled = with_copies(library.source, rng)
        was, best = (measure({library.path: source}) for source in (tangled, library.source))
        tests = {library.test_path: library.tests.encode(), "tests/__init__.py": b""}
        before = {library.path: tangled.encode(), **tests}
        return Draft(
            instruction=_instruction(library, rng),
            kind="copies",
            verifier={
                "type": "refactor",
                "runner": "unittest",
                "size": was.size - int(SHARE * (was.size - best.size)),
                "duplicated": was.duplicated - int(SHARE * (was.duplicated - best.duplicated)),
            },
            before=before,
            solved=before | {library.path: library.source.encode()},
            other=before | _apart(library),
            hidden=suite_files(*_hidden(library, rng)),
        )


def with_copies(source: str, rng: random.Random) -> str:
    """Give every caller of a private function its own copy of that function, with other variable names, placed before
    the caller."""
    tree = ast.parse(source)
    helpers = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("_")]
    for helper in helpers:
        source = _copied(source, helper, rng)
    return source


def _copied(source: str, helper: str, rng: random.Random) -> str:
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    original = next(node for node in functions if node.name == helper)
    lines = source.splitlines(keepends=True)
    for node in reversed(functions):
        start, end = node.lineno - 1, node.end_lineno
        if node is original:
            lines[start : (end or start) + 2] = []
        elif mentions(node, helper):
            name = f"_{node.name.strip('_')}{helper}"
            text = "".join(lines[start:end])
            lines[start:end] = [_copy(original, name, rng), "\n\n", re.sub(rf"\b{helper}\b", name, text)]
    return "".join(lines)


def _copy(function: ast.FunctionDef, name: str, rng: random.Random) -> str:
    copy = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copy, ast.FunctionDef)
    copy.name = name
    taken = {node.id for node in ast.walk(copy) if isinstance(node, ast.Name)}
    rename_locals(copy, taken, rng)
    return ast.unparse(copy) + "\n"


def _apart(library: Library) -> dict[str, bytes]:
    """Return the files of a second correct solution, in which everything before the public functions has moved to a
    module of its own."""
    tree = ast.parse(library.source)
    first = public_functions(tree)[0].lineno - 1
    lines = library.source.splitlines(keepends=True)
    shared = "".join(lines[:first]).rstrip() + "\n"
    rest = "".join(lines[first:])
    made = [node.name for node in ast.parse(shared).body if isinstance(node, ast.FunctionDef)]
    for node in ast.parse(shared).body:
        if isinstance(node, ast.Assign):
            made += [target.id for target in node.targets if isinstance(target, ast.Name)]
    used = f"from shared import {', '.join(sorted(made))}\n\n\n"
    return {_SHARED: shared.encode(), library.path: (used + rest).encode()}


def suite_ids(library: Library) -> list[str]:
    """Return the ids of the library's tests, as unittest reports them."""
    module = module_name(library.test_path)
    return [
        f"{module}.{suite.name}.{test.name}"
        for suite in ast.parse(library.tests).body
        if isinstance(suite, ast.ClassDef)
        for test in suite.body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test")
    ]


def _hidden(library: Library, rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of the hidden tests, and the tests' ids. The agent sees all of these tests but one, which
    expects answers that are hard to guess."""
    ids, solved = suite_ids(library), {library.path: library.source.encode()}
    tests = {library.test_path: library.tests.encode(), "tests/__init__.py": b""}
    names = {test.rpartition(".")[2] for test in ids}
    source = with_computed_cases(library.test_path, tests, names, solved, None, [_apart(library)], rng)
    if source is None:
        raise AssertionError(f"no answers of {library.module} are hard to guess")
    module = module_name(library.test_path)
    return {**tests, library.test_path: source}, [*ids, f"{module}.{TEST}"]


def _instruction(library: Library, rng: random.Random) -> str:
    ask = rng.choice(
        (
            f"{library.path} says the same things several times. Say each once.",
            f"Functions of {library.path} have copies of the same helpers: put them together.",
            f"Tidy {library.path} up: much of it was copied.",
        )
    )
    return f"{ask} What it does, its public names and its docstrings stay as they are; tests/ must pass."
