"""Programs that use version 1 of a small table library in the workspace, to be moved to version 2.

In version 2, rows are given by column name. Alignment and order are arguments of constructors, no longer set by calls.
The function that made a whole table in one call is gone. All programs that use this library are in the same split.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etude.tasks.categories.migrations.program import Program
from etude.tasks.verifiers.migration import OldInterface, copied_functions

SUBJECTS = {
    "league": "club:text points:number won:number city:text lost:number",
    "timber": "wood:text planks:number metres:number yard:text price:number",
    "cellar": "wine:text bottles:number year:number shelf:text value:number",
    "regatta": "boat:text minutes:number crew:number port:text laps:number",
}
_WORDS = ("Alder", "Birch", "Cedar", "Dune", "Elm", "Fern", "Grove", "Heath", "Iris", "Juniper", "Kelp", "Larch")

OLD = '''"""Tables of text, version 1."""


class Table:
    def __init__(self, headers):
        self.headers = list(headers)
        self.rows = []
        self.aligned = ["l"] * len(self.headers)

    def add_row(self, cells):
        if len(cells) != len(self.headers):
            raise ValueError("a row of another length")
        self.rows.append([str(cell) for cell in cells])

    def set_align(self, header, side):
        self.aligned[self.headers.index(header)] = side

    def sort_rows(self, header, backwards=False):
        place = self.headers.index(header)
        self.rows.sort(key=lambda row: (len(row[place]), row[place]), reverse=backwards)

    def render(self, ruled=False):
        lines = [self.headers] + self.rows
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.headers))]
        texts = []
        for line in lines:
            cells = []
            for cell, width, side in zip(line, widths, self.aligned):
                cells.append(cell.rjust(width) if side == "r" else cell.ljust(width))
            texts.append("  ".join(cells).rstrip())
        if ruled:
            texts.insert(1, "  ".join("-" * width for width in widths))
        return "\\n".join(texts)


def quick_table(headers, rows):
    table = Table(headers)
    for row in rows:
        table.add_row(row)
    return table.render()
'''
NEW = '''"""Tables of text, version 2. A grid has columns; rows are given by the columns' names."""

from dataclasses import dataclass


@dataclass
class Column:
    name: str
    align: str = "left"  # or "right"


class Grid:
    def __init__(self, *columns, order=None, descending=False):
        """`order` names the column by which rows are sorted: shorter texts first, then by alphabet."""
        self._columns = columns
        self._order = order
        self._descending = descending
        self._records = []

    def append(self, **values):
        names = {column.name for column in self._columns}
        if values.keys() != names:
            raise TypeError("expected " + ", ".join(sorted(names)))
        self._records.append({name: str(value) for name, value in values.items()})

    def text(self, rule=""):
        """All lines, below the names a line of `rule` characters if there is one."""
        found = list(self._records)
        if self._order is not None:
            found.sort(key=lambda one: (len(one[self._order]), one[self._order]), reverse=self._descending)
        blocks = []
        for column in self._columns:
            block = [column.name, *(one[column.name] for one in found)]
            width = max(map(len, block))
            if rule:
                block.insert(1, rule * width)
            blocks.append([f"{cell:>{width}}" if column.align == "right" else f"{cell:<{width}}" for cell in block])
        return "\\n".join("  ".join(cells).rstrip() for cells in zip(*blocks))
'''


@dataclass(frozen=True, slots=True)
class _Layout:
    names: Sequence[str]
    right: Sequence[str] = ()
    order: str = ""
    backwards: bool = False
    ruled: bool = False

    @property
    def rule(self) -> str:
        return "-" if self.ruled else ""

    def text(self, records: Sequence[Mapping[str, object]]) -> str:
        """Return the table of these records as text. Every version of the generated program, on the old interface or
        the new, must return exactly this text."""
        rows = [[str(record[name]) for name in self.names] for record in records]
        if self.order:
            place = self.names.index(self.order)
            rows.sort(key=lambda row: (len(row[place]), row[place]), reverse=self.backwards)
        widths = [max(map(len, cells)) for cells in zip(self.names, *rows, strict=True)]
        lines = [list(self.names), *([["-" * width for width in widths]] if self.ruled else []), *rows]
        sides = [">" if name in self.right else "<" for name in self.names]
        return "\n".join(
            "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)).rstrip()
            for line in lines
        )


def draw(rng: random.Random) -> Program:
    subject = rng.choice(list(SUBJECTS))
    offered = [tuple(text.split(":")) for text in SUBJECTS[subject].split()]
    columns = [offered[0], *rng.sample(offered[1:], rng.randint(2, 4))]
    names = [name for name, _ in columns]
    right = [name for name, kind in columns if kind == "number"]
    layout = _Layout(names, right, rng.choice(right or names), rng.random() < 0.5, rng.random() < 0.5)
    return Program(
        name=subject,
        kind="grids1-grids2",
        about=f"`{subject}.report(records)` and `{subject}.pairs(items)` make tables, with grids1.",
        instruction=(
            f"Move {subject}.py from grids1 to grids2, which lies beside it: grids1 will not be there any more. "
            "What the functions answer stays the same."
        ),
        before=_before(subject, layout),
        after=_after(subject, layout),
        other=_other(subject, layout),
        tests=_tests(subject, columns, layout, rng),
        old=OldInterface(
            ("grids1",),
            ("Table", "add_row", "set_align", "sort_rows", "quick_table"),
            copied_functions(OLD.encode()),
        ),
        new=("grids2",),
        absent=("grids1/__init__.py",),
        dulled={"grids2/__init__.py": f'{NEW}\n\nGrid.text = lambda self, rule="": ""\n'.encode()},
        libraries={"grids1/__init__.py": OLD.encode(), "grids2/__init__.py": NEW.encode()},
    )


_REPORT = 'def report(records):\n    """A line for each record, a dictionary, below a line of names."""\n'
_PAIRS = '\n\ndef pairs(items):\n    """Names and values of a dictionary, as they come."""\n'


def _before(subject: str, layout: _Layout) -> str:
    cells = ", ".join(f"record[{name!r}]" for name in layout.names)
    sides = "".join(f'    table.set_align("{name}", "r")\n' for name in layout.right)
    return (
        f'"""Tables of a {subject}."""\n\nfrom grids1 import Table, quick_table\n\n\n{_REPORT}'
        f"    table = Table({list(layout.names)!r})\n    for record in records:\n        table.add_row([{cells}])\n"
        f'{sides}    table.sort_rows("{layout.order}", {layout.backwards})\n    return table.render({layout.ruled})\n'
        f'{_PAIRS}    return quick_table(["name", "value"], list(items.items()))\n'
    )


def _after(subject: str, layout: _Layout) -> str:
    columns = ", ".join(f'Column("{n}"' + (', "right")' if n in layout.right else ")") for n in layout.names)
    given = ", ".join(f"{name}=record[{name!r}]" for name in layout.names)
    return (
        f'"""Tables of a {subject}."""\n\nfrom grids2 import Column, Grid\n\n\n{_REPORT}'
        f'    grid = Grid({columns}, order="{layout.order}", descending={layout.backwards})\n'
        f"    for record in records:\n        grid.append({given})\n    return grid.text({layout.rule!r})\n"
        f'{_PAIRS}    grid = Grid(Column("name"), Column("value"))\n    for name, value in items.items():\n'
        "        grid.append(name=name, value=value)\n    return grid.text()\n"
    )


def _other(subject: str, layout: _Layout) -> str:
    return (
        f'"""Tables of a {subject}."""\n\nimport grids2 as grids\n\n'
        f"NAMES = {list(layout.names)!r}\nRIGHT = {list(layout.right)!r}\n\n\n"
        "def _filled(grid, records):\n    for record in records:\n        grid.append(**record)\n    return grid\n\n\n"
        f'{_REPORT}    columns = [grids.Column(name, align="right" if name in RIGHT else "left") for name in NAMES]\n'
        f'    grid = grids.Grid(*columns, order="{layout.order}", descending={layout.backwards})\n'
        "    chosen = [{name: record[name] for name in NAMES} for record in records]\n"
        f"    return _filled(grid, chosen).text(rule={layout.rule!r})\n"
        f'{_PAIRS}    plain = grids.Grid(grids.Column("name"), grids.Column("value"))\n'
        '    return _filled(plain, [{"name": name, "value": value} for name, value in items.items()]).text()\n'
    )


def _tests(subject: str, columns: Sequence[tuple[str, ...]], layout: _Layout, rng: random.Random) -> str:
    lines = []
    for name, count in (("one", 1), ("some", 3), ("many", 6), ("none", 0)):
        records = [_record(columns, word, rng) for word in rng.sample(_WORDS, count)]
        call = f"{subject}.report({records!r})"
        lines.append(
            f"    def test_report_of_{name}(self):\n        self.assertEqual({call}, {layout.text(records)!r})\n"
        )
    items = {word: rng.randint(1, 5000) for word in rng.sample(_WORDS, 3)}
    said = _Layout(("name", "value")).text([{"name": name, "value": value} for name, value in items.items()])
    lines.append(f"    def test_pairs(self):\n        self.assertEqual({subject}.pairs({items!r}), {said!r})\n")
    return f"import unittest\n\nimport {subject}\n\n\nclass ProgramTest(unittest.TestCase):\n" + "\n".join(lines)


def _record(columns: Sequence[tuple[str, ...]], word: str, rng: random.Random) -> dict[str, object]:
    found: dict[str, object] = {}
    for place, (name, kind) in enumerate(columns):
        text = word if place == 0 else rng.choice(_WORDS).lower()
        found[name] = rng.randint(1, 10 ** rng.randint(1, 4)) if kind == "number" else text
    return found
