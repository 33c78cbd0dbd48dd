"""A tool's schema, read from a data file: what the model may call, with which arguments in which order.

`check` is the single door: arguments reach a tool only in the declared names and types, whoever parsed them.
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
    """A tool's or profile's data file cannot be used: names file, field and expectation."""


class BadArguments(Exception):
    """The model's arguments do not fit the schema; the text is for the model."""


ToolKind: TypeAlias = Literal["word", "int", "line", "numbered", "rest", "text", "flag", "number"]


@dataclass(frozen=True, slots=True)
class ToolParameter:
    name: str
    kind: ToolKind
    """"word": no spaces. "int". "line": up to the end of the line. "rest": everything that follows, lines included.
    "numbered": the same, each line beginning with a number. Where calls are JSON alone, since the compact grammar
    has no place for them: "text": any text, "flag": true or false, "number": a whole number."""
    description: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class ToolSchema:
    name: str
    description: str
    parameters: tuple[ToolParameter, ...] = ()
    access: Access = "all"
    """What a call may touch, which decides what may run beside it."""
    place: str = ""
    """The parameter that names the file or folder it touches; without one it is the whole workspace."""

    def call_schema(self) -> CallSchema:
        """For the call grammar of the compact format. What it cannot say is missing there, and the call is told so."""
        positional = [
            Parameter(p.name, p.kind, p.required)
            for p in self.parameters
            if p.kind != "text" and p.kind != "flag" and p.kind != "number"
        ]
        return CallSchema(self.name, tuple(positional))

    def openai(self) -> dict[str, Any]:
        """As a function of the OpenAI chat protocol."""
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
        """One line for a system prompt."""
        arguments = "".join(f" {p.name}" if p.required else f" [{p.name}]" for p in self.parameters)
        return f"{self.name}{arguments}: {self.description}"

    def check(self, arguments: Mapping[str, object], *, strict: bool = False) -> dict[str, Any]:
        """The arguments in their declared types, without the absent ones; BadArguments otherwise. Many models write
        `null` for an argument that they leave out: strictly, that is none."""
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
        # bool is an int to Python, but never a line number.
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadArguments(f"{name} must be a whole number")
        return value
    if not isinstance(value, str):
        raise BadArguments(f"{name} must be text")
    if not value.isascii() and any(0xD800 <= ord(character) < 0xE000 for character in value):
        # JSON can spell halves of surrogate pairs; no file, command or request can hold them.
        raise BadArguments(f"{name} is not valid Unicode")
    if kind == "word" and not value.strip():
        raise BadArguments(f"{name} is empty")
    if kind == "numbered" and unnumbered(value) is not None:
        raise BadArguments(f"a line of {name} must begin with its number")
    return value


def parse_schema(text: str, source: str) -> ToolSchema:
    try:
        data = tomllib.loads(text)
        parameters = tuple(ToolParameter(**entry) for entry in data.pop("parameters", []))
        schema = ToolSchema(parameters=parameters, **data)
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise SchemaError(f"tool schema {source}: {error}") from error
    if schema.access not in get_args(Access):
        raise SchemaError(f"tool schema {source}: access is {schema.access!r}, expected one of {get_args(Access)}")
    if schema.place and schema.place not in {p.name for p in schema.parameters}:
        raise SchemaError(f"tool schema {source}: place names {schema.place!r}, which is no parameter")
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
    """The schema of a tool that ships with the harness (`tools/<name>.toml`)."""
    file = resources.files("etude.harness") / "tools" / f"{name}.toml"
    if not file.is_file():
        raise SchemaError(f"there is no tool schema {name}.toml")
    return parse_schema(file.read_text(encoding="utf-8"), f"{name}.toml")
