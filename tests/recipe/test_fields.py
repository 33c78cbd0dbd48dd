"""No field without a docstring, none that nobody reads."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from pathlib import Path

import pytest

import etude
from etude.recipe import Recipe
from etude.recipe.section import Section

PACKAGE = Path(etude.__file__).parent


def sections(section: type[Section] = Recipe) -> list[type[Section]]:
    found = [section]
    for field in section.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found += sections(field.annotation)
    return list(dict.fromkeys(found))


def settings(node: ast.AST) -> bool:
    """Whether it is `data["name"]`, `data.get("name")` or `published.number("name")`."""
    called = node.func if isinstance(node, ast.Call) else None
    call = isinstance(called, ast.Attribute) and called.attr in ("get", "number")
    return call or isinstance(node, ast.Subscript)


@pytest.fixture(scope="module")
def read_names() -> set[str]:
    """Every attribute that some room other than the recipe's own reads, and every setting that a family of networks
    reads by its published name."""
    names: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        if file.parent.name != "recipe":
            tree = ast.parse(file.read_text(encoding="utf-8"))
            names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
            if "families" in file.parts:
                slices = (n.slice if isinstance(n, ast.Subscript) else n.args[0] for n in ast.walk(tree) if settings(n))
                names |= {str(name.value) for name in slices if isinstance(name, ast.Constant)}
    return names


def documented(section: type[Section]) -> set[str]:
    """Fields below which a docstring stands, in the section's class or one that it inherits from."""
    names: set[str] = set()
    for cls in section.__mro__[: section.__mro__.index(Section)]:
        body = ast.parse(inspect.getsource(cls)).body[0].body
        for field, after in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                names.add(field.target.id)
    return names


@pytest.mark.parametrize("section", sections(), ids=lambda s: s.__name__)
def test_every_field_is_documented(section) -> None:
    bare = [
        name
        for name, field in section.model_fields.items()
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, Section))
        and name not in documented(section)
    ]
    assert not bare, f"{section.__name__} has fields without a docstring: {bare}"


@pytest.mark.parametrize("section", sections(), ids=lambda s: s.__name__)
def test_every_field_is_read_somewhere(section, read_names) -> None:
    unread = [name for name in section.model_fields if name not in read_names and name != "schema_version"]
    assert not unread, f"nobody reads {unread} of {section.__name__}: wire them or remove them"
