"""Loads a Recipe from TOML and dotted overrides, and saves it. Every mistake raises a one-line RecipeError that names
the field and its value."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from etude.recipe.recipe import SCHEMA, Recipe
from etude.recipe.section import Section


class RecipeError(Exception):
    """A recipe cannot be used; the message says which field, what was found and what was expected."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe. Each override is "dotted.field=value" with the value in TOML; a bare word counts as a string.

    A recipe may build on another with `base = "other.toml"`, a path relative to its own folder. Each field that the
    recipe sets replaces this field of the base; all other fields are inherited.
    """
    values = _read(path, ())
    for override in overrides:
        _apply(values, override)
    schema = values.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise RecipeError(f"recipe {path} has schema {schema}, this version reads up to {SCHEMA}: update étude")
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"recipe {path}: {_first_problem(error)}") from error


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Read a recipe file, merged over its `base` files. `above` are the recipes that build on this file, to detect a
    cycle."""
    if path.resolve() in above:
        raise RecipeError(f"recipe {path} builds on itself: follow its `base` and remove the one that leads back to it")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"cannot read recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe {path} is not UTF-8 text") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"recipe {path} is not TOML: {error}") from error
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise RecipeError(f"recipe {path}: base should be the path of a recipe, found {base!r}")
    return _merged(_read(path.parent / base, (*above, path.resolve())), values)


def _merged(below: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below`, overridden by `over`. Sections are merged field by field; lists and other values are replaced."""
    merged = dict(below)
    for name, value in over.items():
        known = merged.get(name)
        merged[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe, with every field, as TOML."""
    path.write_text(dump_recipe(recipe), encoding="utf-8")


def dump_recipe(recipe: Recipe) -> str:
    lines: list[str] = []
    _dump(recipe.model_dump(mode="json", by_alias=True), (), lines)
    return "\n".join(lines).strip() + "\n"


def _apply(values: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not name.strip():
        raise RecipeError(f"override {override!r}: expected dotted.field=value")
    if not override.isprintable():  # a line break would add a second field, and an undecodable byte cannot be saved
        raise RecipeError(f"override {override!r}: expected one line of text")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = name.strip().split(".")
    target = values
    for parent in parents:
        inner = target.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise RecipeError(f"override {override!r}: {parent} is a value, not a section")
        target = inner
    target[last] = value


def _first_problem(error: ValidationError) -> str:
    problems = error.errors()
    first = problems[0]
    place = tuple(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    found = first.get("input")
    if first["type"] == "extra_forbidden":
        message = _unknown(place)
    elif first["type"] == "missing":
        message = "is missing"
    elif first["type"] == "value_error":
        message += _values_named(message, found, place)
    elif first["type"].startswith("model"):
        message = "should be a section"
    shown = f", found {'a section' if isinstance(found, Mapping) else repr(found)}"
    if first["type"] in ("missing", "value_error", "extra_forbidden"):
        shown = ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{'.'.join(place)}{': ' if place else ''}{message}{shown}{more}"


def _unknown(place: tuple[str, ...]) -> str:
    known = [field.alias or name for name, field in _section(place[:-1]).model_fields.items()]
    close = difflib.get_close_matches(place[-1], known, n=1)
    meant = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
    return f"there is no such field; {meant}"


def _values_named(message: str, found: Any, place: tuple[str, ...]) -> str:
    """Return the values of the recipe fields whose names occur in an error message, as text: " (a = 1, b = 2)". The
    text is empty if the message names no field."""
    values = []
    for name in dict.fromkeys(re.findall(r"[a-z_]+(?:\.[a-z_]+)*", message)):
        *parents, last = name.split(".")
        section, value = _section((*place, *parents)), found
        if last not in section.model_fields or issubclass(section, Recipe):
            continue
        for key in (*parents, last):
            value = value.get(key, {}) if isinstance(value, Mapping) else {}
        values.append(f"{name} = {section.model_fields[last].default if value == {} else value}")
    return f" ({', '.join(values)})" if values else ""


def _section(place: Sequence[str]) -> type[Section]:
    section: type[Section] = Recipe
    names = iter(place)
    for name in names:
        inner = section.model_fields[name].annotation if name in section.model_fields else None
        if get_origin(inner) is dict and next(names, None) is not None:  # sections by name, such as corpus.code.NAME
            inner = get_args(inner)[1]
        if not (isinstance(inner, type) and issubclass(inner, Section)):
            return section
        section = inner
    return section


def _dump(values: Mapping[str, Any], place: tuple[str, ...], lines: list[str]) -> None:
    sections = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in values.items() if key not in sections and value is not None}
    if place and plain:
        lines.append(f"\n[{'.'.join(place)}]")
    lines.extend(f"{key} = {_toml(value)}" for key, value in plain.items())
    for key, value in sections.items():
        _dump(value, (*place, key), lines)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # JSON scalars (strings, numbers, true and false) are TOML scalars too, except that TOML requires DEL to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
