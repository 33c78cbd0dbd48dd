"""Decides which expected values of a test can be withheld from the box: removed from the test's source, so that the
tested code cannot read the answer. This file covers values that are not literals but can be computed from the source.

If a name is used only in expected values, the expression that defines it is removed too, so that neither the test's
source nor its stack frame contains the answer. If the name has other uses, its definition stays. Then an expected value
that is equal to the name's value, or a part of it, cannot be removed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from etude.tasks.verifiers.tests.approximate import exactly
from etude.tasks.verifiers.tests.bindings import Binding, Scope, uses_taken
from etude.tasks.verifiers.tests.constants import NotConstant, evaluate
from etude.tasks.verifiers.tests.site import ByteSpan, Edit, Site
from etude.tasks.verifiers.tests.tables import LONGEST, Parameters, Table
from etude.tasks.verifiers.tests.visible_answers import reveals, visible_values


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An equality assertion of a test, one operand of which may have a known value."""

    statement: ast.stmt
    sides: tuple[tuple[ast.expr, ast.expr], ...]
    """The operands as (expected, compared), both ways round, since either may be the expected value."""
    tables: tuple[Table, ...]
    """The tables that the loops around the assertion iterate over, innermost last. Their rows are known from the
    source. Tables outside an `if`, or outside a loop whose rows are unknown, are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """An assertion where one operand has a known value, which might be withheld from the box."""

    statement: ast.stmt
    expected: ast.expr
    compared: ast.expr
    rounds: Sequence[Mapping[str, object]]
    """For each loop iteration, or each row of a parametrised test: the names whose value is known there, with this
    value."""
    values: tuple[object, ...]
    """The values that `expected` has in each of `rounds`, in the same order."""
    bindings: Mapping[str, Binding]
    """For each name in `expected`: the expressions that it stands for, and the code that can use it. Unresolved names
    are absent."""
    by_row: bool
    """Whether `rounds` and `values` have one entry per row of a parametrised test rather than per loop iteration."""


def withholdable_sites(
    candidates: Sequence[Candidate],
    scope: Scope,
    parameters: Parameters | None,
    span: Callable[[ast.expr | ast.stmt], ByteSpan],
) -> dict[Candidate, Site]:
    """Map each candidate whose expected value can be removed from the source to a Site, which holds the edits that
    remove it. The edits of all sites can be applied together. A table that other assertions use is not changed."""
    withholdable = {one: known for one in candidates if (known := _known(one, scope, parameters))}
    while True:
        gone = set(_removed_uses(list(withholdable.values()), scope))
        blanked = {one: _expressions_to_remove(known, scope, gone) for one, known in withholdable.items()}
        if all(blanks is not None for blanks in blanked.values()):
            break
        withholdable = {one: known for one, known in withholdable.items() if blanked[one] is not None}
    found = {}
    for one, known in withholdable.items():
        blanks: list[Edit] = [(span(node), b"None") for node in blanked[one] or ()]
        rows = parameters.row_ids if known.by_row and parameters else ()
        renamed = bool(rows) and bool(blanks)
        if parameters and renamed:
            blanks += parameters.renaming
        literal = span(known.expected) if not blanks and len(known.values) == 1 else None
        found[one] = Site(
            literal,
            known.values,
            statement=span(known.statement),
            compared=span(known.compared),
            given=visible_values(known.compared, known.rounds, known.values),
            blanks=tuple(blanks),
            rows=rows,
            renamed=renamed,
        )
    return found


def _known(one: Candidate, scope: Scope, parameters: Parameters | None) -> _Known | None:
    for expected, compared in one.sides:
        names = {node.id for node in ast.walk(expected) if isinstance(node, ast.Name)}
        by_row = parameters is not None and not names.isdisjoint(parameters.table.columns)
        tables = list(one.tables)
        if parameters is not None and by_row:
            if any(not names.isdisjoint(table.columns) for table in tables):
                continue  # The value depends on both a parametrised row and a loop within the test.
            tables = [parameters.table]
        while tables and names.isdisjoint(tables[0].columns):
            tables.pop(0)  # The value does not depend on this outer table.
        bindings = dict(scope.bindings)
        for table in tables:
            bindings.update(table.columns)
        try:
            if uses_taken(expected, scope):
                continue
            rounds = list(_rounds(tables, scope.values))
            values = tuple(evaluate(expected, known) for known in rounds)
        except NotConstant:
            continue
        if all(map(_survives_repr, values)):
            used = {name: bindings[name] for name in names if name in bindings}
            return _Known(one.statement, expected, compared, rounds, values, used, by_row)
    return None


def _rounds(tables: Sequence[Table], known: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield a dict for each iteration of nested loops over these tables, the first outermost. It holds the names whose
    value is known in this iteration: columns of the tables, and names in `known` that no column hides. Raises
    NotConstant for more than `LONGEST` iterations."""
    count = 1
    for table in tables:
        count *= len(table.rows)
    if count > LONGEST:
        raise NotConstant("too many rounds")
    if not tables:
        yield dict(known)
        return
    for row in tables[0].rows:
        # A column that is unknown in this row hides an outer name of the same name.
        outer = {name: value for name, value in known.items() if name not in tables[0].columns}
        yield from _rounds(tables[1:], {**outer, **row})


def _removed_uses(known: Sequence[_Known], scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes that do not count as uses when deciding whether a name's definition can be removed: those that
    disappear when the values of `known` are withheld, and those that only label a subtest."""
    for one in known:
        stays = set(ast.walk(one.compared))
        yield from (node for node in ast.walk(one.statement) if node not in stays)
    for node in ast.walk(scope.function or scope.tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "subTest":
            yield from (part for keyword in node.keywords for part in ast.walk(keyword.value))


def _expressions_to_remove(one: _Known, scope: Scope, gone: set[ast.AST]) -> list[ast.expr] | None:
    """Return the expressions to remove when the value of `one` is withheld: those that define names without any other
    use. Return None if the value would remain visible. Nodes in `gone` do not count as uses (see `_removed_uses`)."""
    found: list[ast.expr] = []
    for name, binding in one.bindings.items():
        if all(use in gone for use in scope.uses(name, binding.within)):
            if binding.expressions is None or any(
                _names_a_value(node, scope, one.values) for node in binding.expressions
            ):
                return None
            found += binding.expressions
        elif any(reveals(known.get(name), value) for known, value in zip(one.rounds, one.values, strict=True)):
            return None
    return found


def _names_a_value(node: ast.expr, scope: Scope, values: tuple[object, ...]) -> bool:
    """Return whether a name in this expression has a value that reveals one of `values`."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return any(reveals(scope.values.get(name), value) for name in names for value in values)


def _survives_repr(value: object) -> bool:
    value = exactly(value)
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
