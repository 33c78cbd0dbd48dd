"""Makes an example that demonstrates a package's bug, from the expression that a failing test checks."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from functools import cache

from etude.tasks.categories.packages import Damage, Package
from etude.tasks.categories.tested_expressions import ASKED_FIRST, assigned, filled, free_names
from etude.tasks.verifiers.review import problem_of_example
from etude.tasks.verifiers.review.proof import names_of

_LONGEST = 200


def example_of(package: Package, damage: Damage) -> str:
    """Return an expression that demonstrates a bug of the package, taken from a test that fails because of the bug.
    Return an empty string if no failing test consists of a single assertion about one valid expression."""
    files = {path: data.decode() for path, data in package.files.items()}
    library = names_of(files)
    found = (_asked(package, test) for test in damage.tests)
    return next((one for one in found if 0 < len(one) <= _LONGEST and not problem_of_example(one, library)), "")


def _asked(package: Package, test: str) -> str:
    module, _, name = test.rpartition(".")
    path = "/".join(module.split(".")[:-1]) + ".py"
    tree = _tree(package.tests[path])
    values = assigned(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name and len(node.body) == 1:
            asked = _expression(node.body[0])
            return _alone(asked, values, package.name) if asked else ""
    return ""


def _expression(statement: ast.stmt) -> ast.expr | None:
    if isinstance(statement, ast.With) and len(statement.body) == 1:
        inner, context = statement.body[0], statement.items[0].context_expr
        raises = isinstance(context, ast.Call) and isinstance(context.func, ast.Attribute)
        return inner.value if raises and isinstance(inner, ast.Expr) else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ASKED_FIRST:
        return call.args[0]
    return None


def _alone(asked: ast.expr, values: Mapping[str, ast.expr], package: str) -> str:
    """Return the source of an expression from a test, with the test module's constants replaced by their values. Return
    an empty string if it still needs a name other than the package and builtins."""
    whole = filled(asked, values)
    return ast.unparse(whole) if free_names(whole) <= {package, *vars(builtins)} else ""


@cache
def _tree(source: bytes) -> ast.Module:
    return ast.parse(source)
