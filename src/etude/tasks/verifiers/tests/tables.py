"""Finds tables that a test checks row by row: in a loop over literals, or with `pytest.mark.parametrize`."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from etude.tasks.verifiers.tests.bindings import Binding, Scope, uses_taken
from etude.tasks.verifiers.tests.constants import NotConstant, bind, evaluate
from etude.tasks.verifiers.tests.site import ByteSpan

LONGEST = 500
"""Maximum number of rows of a table that a test checks row by row; larger tables are not used."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    rows: list[dict[str, object]]
    """For each row of the table, the values that are known from the source, by column name."""
    columns: Mapping[str, Binding]
    """For each column, by name: the expressions in its cells, and the code that can use the column's name."""


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """The table of a parametrised test, from which pytest makes one test per row."""

    table: Table
    row_ids: tuple[frozenset[str], ...]
    """For each row, the names that pytest may give it in test ids."""
    renaming: tuple[tuple[ByteSpan, bytes], ...] = field(default=())
    """Edits of the test's source that name its rows row1, row2 and so on in test ids, because the original names may
    reveal expected values."""


def row_name(row: int) -> str:
    return f"row{row + 1}"


def loop_table(loop: ast.For, scope: Scope, names: Mapping[str, object]) -> Table | None:
    """Return the table that a loop iterates over, or None if its rows are unknown or may be skipped."""
    if any(isinstance(node, ast.Break | ast.Continue | ast.Return) for part in loop.body for node in ast.walk(part)):
        return None
    try:
        expressions = _written_rows(loop.iter, scope)
        if expressions is not None:
            return _table([target.id for target in _targets(loop.target)], expressions, loop, scope, names)
        if uses_taken(loop.iter, scope):
            return None
        rows = [bind(loop.target, item) for item in itertools.islice(evaluate(loop.iter, names), LONGEST + 1)]
    except (NotConstant, TypeError):
        return None
    hidden = {name: Binding(None, loop) for row in rows for name in row}
    return Table(rows, hidden) if 0 < len(rows) <= LONGEST else None


def parameters(scope: Scope, source: bytes, span: Callable[[ast.expr], ByteSpan]) -> Parameters | None:
    """Return the table in a test function's parametrize decorator. None if the function has not exactly one such
    decorator, or if its rows or ids cannot be read from the source."""
    assert scope.function is not None
    marks = [mark for mark in scope.function.decorator_list if "parametrize" in ast.unparse(mark)]
    if len(marks) != 1 or not isinstance(mark := marks[0], ast.Call) or len(mark.args) != 2:
        return None
    given = {keyword.arg: keyword.value for keyword in mark.keywords}
    try:
        names = _argument_names(evaluate(mark.args[0], {}))
        ids = evaluate(given["ids"], scope.values) if "ids" in given else None
        if ids is not None and not isinstance(ids, list | tuple):
            return None
        expressions = _written_rows(mark.args[1], scope)
        if expressions is None or not given.keys() <= {"ids"} or (ids is not None and len(ids) != len(expressions)):
            return None
        if isinstance(given.get("ids"), ast.Name):
            return None  # The named ids would stay in the file, and may reveal the rows.
        marked = [_unwrap_param(row) for row in expressions]
        rows = [_cells(names, row if cells is None else cells) for row, cells, _ in marked]
        table = _table(names, rows, scope.function, scope, scope.values)
    except NotConstant:
        return None
    if table is None:
        return None
    own = [own if own is not None else ids[place] if ids else None for place, (_, _, own) in enumerate(marked)]
    row_ids = tuple(
        frozenset([_escaped(name)]) if isinstance(name, str) else _row_ids(names, rows[place], place, table)
        for place, name in enumerate(own)
    )
    renaming = [
        (span(keyword.value), f'"{row_name(place)}"'.encode())
        for place, row in enumerate(expressions)
        if isinstance(row, ast.Call)
        for keyword in row.keywords
    ]
    listed = f"[{', '.join(repr(row_name(place)) for place in range(len(expressions)))}]".encode()
    if "ids" in given:
        renaming.append((span(given["ids"]), listed))
    else:
        first, last = span(mark.args[1])[1], span(mark)[1] - 1
        if source[first:last].strip() not in (b"", b","):
            return None
        renaming.append(((last, last), (b" ids=" if b"," in source[first:last] else b", ids=") + listed))
    return Parameters(table, row_ids, tuple(renaming))


def _table(
    names: Sequence[str], expressions: Sequence[ast.expr | list[ast.expr]], within: ast.AST, scope: Scope,
    known: Mapping[str, object],
) -> Table | None:  # fmt: skip
    rows = [row if isinstance(row, list) else _cells(names, row) for row in expressions]
    if not 0 < len(rows) <= LONGEST:
        return None
    found: list[dict[str, object]] = []
    for row in rows:
        values: dict[str, object] = {}
        for name, cell in zip(names, row, strict=True):
            try:
                if not uses_taken(cell, scope):
                    values[name] = evaluate(cell, known)
            except NotConstant:
                continue
        found.append(values)
    columns = {name: Binding(tuple(row[place] for row in rows), within) for place, name in enumerate(names)}
    return Table(found, columns)


def _written_rows(table: ast.expr, scope: Scope) -> Sequence[ast.expr | list[ast.expr]] | None:
    """Return the rows of the expression `table` (a list, a tuple, or a dict's `.items()`) if they are written in place,
    or in a constant that is used nowhere else. Otherwise return None."""
    if isinstance(table, ast.Call) and isinstance(table.func, ast.Attribute) and table.func.attr == "items":
        held = _resolve_name(table.func.value, scope)
        if isinstance(held, ast.Dict) and all(held.keys):
            return [[key, value] for key, value in zip(held.keys, held.values, strict=True) if key is not None]
    held = _resolve_name(table, scope)
    if isinstance(held, ast.List | ast.Tuple) and not any(isinstance(row, ast.Starred) for row in held.elts):
        return held.elts
    return None


def _resolve_name(node: ast.expr, scope: Scope) -> ast.expr:
    """Return the expression that is assigned to the name `node`, if the name is used only here. Otherwise return `node`
    itself."""
    if not isinstance(node, ast.Name) or node.id not in scope.bindings:
        return node
    binding = scope.bindings[node.id]
    alone = len(list(scope.uses(node.id, binding.within))) == 1
    return binding.expressions[0] if alone and binding.expressions else node


def _cells(names: Sequence[str], row: ast.expr | list[ast.expr]) -> list[ast.expr]:
    if isinstance(row, list):
        cells = row
    elif len(names) == 1:
        cells = [row]
    else:
        cells = list(row.elts) if isinstance(row, ast.Tuple | ast.List) else []
    if len(cells) != len(names) or any(isinstance(cell, ast.Starred) for cell in cells):
        raise NotConstant("a row of another length")
    return cells


def _targets(target: ast.expr) -> list[ast.Name]:
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    found = [part for part in parts if isinstance(part, ast.Name)]
    if len(found) != len(parts) or (len(parts) == 1 and parts[0] is not target):
        raise NotConstant("rows within rows")
    return found


# -- the names that pytest gives to rows


def _argument_names(given: object) -> list[str]:
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise NotConstant("names that are not written down")
    return [str(name) for name in names]


def _unwrap_param(
    row: ast.expr | list[ast.expr],
) -> tuple[ast.expr | list[ast.expr], list[ast.expr] | None, str | None]:
    """Return a row of a parametrised test as (row, cells, id). Cells and id are read from a `pytest.param(...)` call,
    whose id is None if it gives none. For a row that is no call, both are None."""
    if not isinstance(row, ast.Call):
        return row, None, None
    keywords = {keyword.arg: keyword.value for keyword in row.keywords}
    if not ast.unparse(row.func).endswith("param") or not keywords.keys() <= {"id"}:
        raise NotConstant("a row that is computed, or marked")
    name = evaluate(keywords["id"], {}) if keywords else None
    return row, row.args, name if isinstance(name, str) else None


def _row_ids(names: Sequence[str], cells: Iterable[ast.expr], row: int, table: Table) -> frozenset[str]:
    choices = [
        [_cell_id(table.rows[row][name], f"{name}{row}")]
        if name in table.rows[row]
        else list(_guesses(cell, name, row))
        for name, cell in zip(names, cells, strict=True)
    ]
    return frozenset("-".join(parts) for parts in itertools.islice(itertools.product(*choices), 64))


def _cell_id(value: object, otherwise: str) -> str:
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, bytes):
        return value.decode("ascii", "backslashreplace")
    return str(value) if value is None or isinstance(value, int | float | complex) else otherwise


def _guesses(cell: ast.expr, name: str, row: int) -> Iterator[str]:
    """Yield how pytest may write a cell of unknown value in an id. A function or class may appear by its name."""
    yield f"{name}{row}"
    if isinstance(cell, ast.Name | ast.Attribute):
        yield cell.attr if isinstance(cell, ast.Attribute) else cell.id


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")
