"""Tool schemas, read from data files: each tool's name, description and parameters.

A tool gets its arguments only after `ToolSchema.check` has checked their names and types.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeAlias, get_args

from etude.harness.parallel import Access
from etude.text.calls import TO_THE_END, CallSchema, Parameter, unnumbered


class SchemaError(Exception):
    """The data file of a tool, profile or linter cannot be used; the message names the file and says what is wrong."""


class BadArguments(Exception):
    """The model's arguments do not match the tool's schema. The message is for the model."""


ToolKind: TypeAlias = Literal["word", "int", "line", "numbered", "rest", "text", "flag", "number"]


@dataclass(frozen=True, slots=True)
class ToolParameter:
    name: str
    kind: ToolKind
    """"word": text without spaces. "int": a whole number. "line": text up to the end of the line. "rest": all text that
    follows, also several lines. "numbered": like "rest", where each line begins with a number. Three kinds exist only
    in formats with JSON calls, since the compact grammar cannot express them: "text" (any text), "flag" (true or
    false), "number" (a whole number)."""
    description: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class ToolSchema:
    name: str
    description: str
    parameters: tuple[ToolParameter, ...] = ()
    access: Access = "all"
    """How a call uses files, which decides which calls can run in parallel."""
    place: str = ""
    """Name of the parameter that gives the file or folder that a call uses; empty if calls use the whole workspace."""

    def call_schema(self) -> CallSchema:
        """Return the schema for the compact call grammar. Parameters that this grammar cannot express are left out."""
        positional = [
            Parameter(p.name, p.kind, p.required)
            for p in self.parameters
            if p.kind != "text" and p.kind != "flag" and p.kind != "number"
        ]
        return CallSchema(self.name, tuple(positional))

    def openai(self) -> dict[str, Any]:
        properties = {
            p.name: {"type": _JSON_TYPES.get(p.kind, "string"), "description": p.description} for p in self.parameters
        }
        required = [p.name for p in self.parameters if p.required]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }

    def usage(self) -> str:
        arguments = "".join(f" {p.name}" if p.required else f" [{p.name}]" for p in self.parameters)
        return f"{self.name}{arguments}: {self.description}"

    def check(self, arguments: Mapping[str, object], *, strict: bool = False) -> dict[str, Any]:
        """Check the names and types of a call's arguments, and return the arguments. Raises BadArguments. `null` counts
        as an absent argument, because many models write it; with `strict` it is an error."""
        known = {p.name: p for p in self.parameters}
        for name in arguments:
            if name not in known:
                raise BadArguments(f"no argument {name!r}")
        checked: dict[str, Any] = {}
        for name, parameter in known.items():
            value = arguments.get(name)
            if value is None:
                if parameter.required:
                    raise BadArguments(f"{name} is missing")
                if strict and name in arguments:
                    raise BadArguments(f"{name} must be left out or have a value")
                continue
            checked[name] = _typed(name, parameter.kind, value)
        return checked


_JSON_TYPES = {"int": "integer", "number": "integer", "flag": "boolean"}


def _typed(name: str, kind: ToolKind, value: object) -> str | int:
    if kind == "flag":
        if not isinstance(value, bool):
            raise BadArguments(f"{name} must be true or false")
        return value
    if kind in ("int", "number"):
        # In Python bool is an int, but it is never a line number.
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadArguments(f"{name} must be a whole number")
        return value
    if not isinstance(value, str):
        raise BadArguments(f"{name} must be text")
    if not value.isascii() and any(0xD800 <= ord(character) < 0xE000 for character in value):
        # JSON can contain unpaired surrogates, which no file, command or request can.
        raise BadArguments(f"{name} is not valid Unicode")
    if kind == "word" and not value.strip():
        raise BadArguments(f"{name} is empty")
    if kind == "numbered" and unnumbered(value) is not None:
        raise BadArguments(f"a line of {name} must begin with its number")
    return value


def parse_schema(text: str, source: str) -> ToolSchema:
    """Parse a tool's data file; `source` names the file in error messages. Raises SchemaError."""
    try:
        data = tomllib.loads(text)
        parameters = tuple(ToolParameter(**entry) for entry in data.pop("parameters", []))
        schema = ToolSchema(parameters=parameters, **data)
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise SchemaError(f"tool schema {source}: {error}") from error
    if schema.access not in get_args(Access):
        raise SchemaError(f"tool schema {source}: access is {schema.access!r}, expected one of {get_args(Access)}")
    if schema.place and schema.place not in {p.name for p in schema.parameters}:
        raise SchemaError(f"tool schema {source}: place is {schema.place!r}, which is not a parameter")
    for parameter in schema.parameters:
        if parameter.kind not in get_args(ToolKind):
            kinds = get_args(ToolKind)
            raise SchemaError(
                f"tool schema {source}: {parameter.name}.kind is {parameter.kind!r}, expected one of {kinds}"
            )
    if any(p.kind in TO_THE_END for p in schema.parameters[:-1]):
        raise SchemaError(f"tool schema {source}: only the last parameter may have the kind 'rest' or 'numbered'")
    return schema


@cache
def builtin_schema(name: str) -> ToolSchema:
    """Return the schema of a tool that ships with the harness (`tools/<name>.toml`)."""
    file = resources.files("etude.harness") / "tools" / f"{name}.toml"
    if not file.is_file():
        raise SchemaError(f"there is no tool schema {name}.toml")
    return parse_schema(file.read_text(encoding="utf-8"), f"{name}.toml")
