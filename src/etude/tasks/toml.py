"""Writes TOML, because the standard library can only read it. Reading the output with `tomllib` gives equal values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(values: Mapping[str, Any]) -> str:
    """Format a table as TOML. Raises TypeError for a value that TOML cannot express, such as None."""
    lines: list[str] = []
    _table(values, (), lines)
    return "\n".join(lines).strip("\n") + "\n"


def _table(values: Mapping[str, Any], place: tuple[str, ...], lines: list[str], header: str = "[{}]") -> None:
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    arrays = {key: value for key, value in values.items() if _is_array_of_tables(value)}
    plain = {key: value for key, value in values.items() if key not in tables and key not in arrays}
    # A table that holds only tables needs no header of its own. An empty table does, and so does each entry of an
    # array.
    if place and (plain or not (tables or arrays) or header != "[{}]"):
        lines.append("\n" + header.format(".".join(map(_key, place))))
    lines.extend(f"{_key(key)} = {_value(value)}" for key, value in plain.items())
    for key, value in tables.items():
        _table(value, (*place, key), lines)
    for key, items in arrays.items():
        for item in items:
            _table(item, (*place, key), lines, "[[{}]]")


def _is_array_of_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(value: str) -> str:
    # A JSON string is a valid TOML string, except for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    raise TypeError(f"TOML cannot express {value!r}")
