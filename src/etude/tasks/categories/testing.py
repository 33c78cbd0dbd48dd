"""Test-writing tasks: the agent writes the tests of a small library. They are graded on mutants that the library's
original tests detect."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence

from etude.tasks.categories.base import CategorySource, Draft
from etude.tasks.categories.libraries import NAMES, Library, draw_library, public_functions
from etude.tasks.categories.trial import exit_codes
from etude.tasks.task import TaskError
from etude.tasks.verifiers.language import MODULES
from etude.tasks.verifiers.mutation import Mutant, dump_mutants, mutants_of

MUTANTS = 14
THRESHOLD = 0.8
_TRIED = 28
_EMPTY = "tests/__init__.py"


class TestingSource(CategorySource):
    __test__ = False  # Not a test, whatever its name.

    name = "testing"
    category = "testing"

    def kins(self) -> Sequence[str]:
        return NAMES

    def draft(self, kin: str, rng: random.Random) -> Draft:
        library = draw_library(kin, rng)
        before = {library.path: library.source.encode(), _EMPTY: b""}
        return Draft(
            instruction=_instruction(library, rng),
            kind="unittest",
            verifier={"type": "mutation", "threshold": THRESHOLD, "seconds": 4.0},
            before=before,
            solved=before | {library.test_path: library.tests.encode()},
            other=before | {"tests/test_all.py": restated(library.tests).encode()},
            hidden={"tests/mutants.json": dump_mutants(draw_mutants(library, rng))},
            seconds=120.0,
        )


def draw_mutants(library: Library, rng: random.Random) -> list[Mutant]:
    """Draw mutants on which the library's own tests fail quickly, spread over its lines. So every mutant behaves
    differently from the library, and none loops forever."""
    candidates = list(mutants_of(library.path, library.source))
    rng.shuffle(candidates)
    codes = exit_codes(library, [library.source, *(mutant.source for mutant in candidates[:_TRIED])])
    if codes[0] != 0:
        raise TaskError(f"library {library.module}: its own tests fail on it")
    found = [mutant for mutant, code in zip(candidates, codes[1:], strict=False) if code == 1]
    lines: dict[int, list[Mutant]] = {}
    for mutant in found:
        lines.setdefault(mutant.line, []).append(mutant)
    spread = sorted(found, key=lambda mutant: lines[mutant.line].index(mutant))
    return sorted(spread[:MUTANTS], key=lambda mutant: mutant.line)


def restated(tests: str) -> str:
    """Return the tests with `assertEqual` calls rewritten as plain asserts. They are the task's second correct
    solution, which must pass too."""
    tree = ast.parse(tests)
    return ast.unparse(ast.fix_missing_locations(_Restated().visit(tree))) + "\n"


class _Restated(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "assertEqual":
            return ast.Assert(ast.Compare(call.args[0], [ast.Eq()], [call.args[1]]))
        return node


def _instruction(library: Library, rng: random.Random) -> str:
    names = ", ".join(function.name for function in public_functions(ast.parse(library.source)))
    ask = rng.choice(
        (
            f"{library.path} has no tests. Write unittest tests for it in {library.test_path}.",
            f"Write tests for {names} of {library.path}: unittest, in {library.test_path}.",
            f"Cover {library.path} with unittest tests in tests/, so that no fault in it goes unseen.",
        )
    )
    allowed = ", ".join(sorted(MODULES))
    return f"{ask} They test what it does, through its public names alone; of other modules they may use {allowed}."
