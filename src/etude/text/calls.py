"""The compact tool-call grammar: `name arg1 arg2 rest...`, with positional arguments in the order of the schema.

Invariant: parse_call(format_call(name, arguments, schema), schemas) gives the same name and arguments. For a malformed
call `parse_call` returns a one-line description of the problem instead of raising, because the agent reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["word", "int", "line", "numbered", "rest"]
"""Kinds of parameters of a tool call.

- word: text without white space.
- int: at most nine decimal digits, which may follow a minus sign.
- line: everything up to the end of the line.
- rest: everything to the end of the call, line breaks included.
- numbered: like rest, but each line begins with a number, which a space separates from any further text.
"""

TO_THE_END = ("numbered", "rest")
"""Kinds that extend to the end of the call, so no parameter can follow them."""

Arguments: TypeAlias = dict[str, object]

_INT = re.compile(r"-?[0-9]{1,9}")
_NUMBERED = re.compile(r"([0-9]{1,9})(?: (.*))?", re.DOTALL)
_WORD = re.compile(r"[^ \n\t\r]+")
_SHOWN = 24
"""Maximum number of characters of a bad value that a problem description quotes."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: Kind = "word"
    required: bool = True


@dataclass(frozen=True, slots=True)
class CallSchema:
    name: str
    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if calls of this schema could not be parsed unambiguously."""
        if not _WORD.fullmatch(self.name):
            raise ValueError(f"tool name must be one word, found {self.name!r}")
        optional_seen = False
        for place, parameter in enumerate(self.parameters):
            if parameter.kind in TO_THE_END and place != len(self.parameters) - 1:
                raise ValueError(f"{self.name}: {parameter.name} takes the rest, so it must come last")
            if optional_seen and parameter.required:
                raise ValueError(f"{self.name}: {parameter.name} is required but follows an optional parameter")
            optional_seen = not parameter.required

    @property
    def usage(self) -> str:
        return " ".join(p.name if p.required else f"[{p.name}]" for p in self.parameters)


def parse_call(raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
    """Return the tool's name and the arguments that the call gives, or a one-line description of the problem."""
    name = call_name(raw)
    schema = schemas.get(name)
    if schema is None:
        tools = ", ".join(schemas)
        return f"unknown tool {_shown(name)}, tools: {tools}" if name else f"empty call, tools: {tools}"
    left = raw.lstrip()[len(name) :]
    arguments: Arguments = {}
    for parameter in schema.parameters:
        value, left = _take(parameter.kind, left)
        if value is None:
            if parameter.required:
                return f"{name} needs: {schema.usage}"
            continue
        if parameter.kind == "int":
            if not _INT.fullmatch(value):
                return f"{name}: {parameter.name} must be a number, not {_shown(value)}"
            arguments[parameter.name] = int(value)
        elif parameter.kind == "numbered" and (bad := unnumbered(value)) is not None:
            return f"{name}: a line must begin with its number, not {_shown(bad) or 'be empty'}"
        else:
            arguments[parameter.name] = value
    if left.strip():
        takes = f"takes only: {schema.usage}" if schema.parameters else "takes nothing"
        return f"{name} {takes}"
    return name, arguments


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """Split an argument of kind "numbered" into (line number, text) pairs. A final newline does not start a line."""
    found = [_NUMBERED.fullmatch(line) for line in text.removesuffix("\n").split("\n")]
    return [(int(match[1]), match[2] or "") for match in found if match is not None]


def unnumbered(text: str) -> str | None:
    lines = text.removesuffix("\n").split("\n")
    return next((line for line in lines if _NUMBERED.fullmatch(line) is None), None)


def call_name(raw: str) -> str:
    """Return the first word of a call, even if the call does not parse; empty if there is none."""
    found = _WORD.match(raw.lstrip())
    return found.group() if found else ""


def format_call(name: str, arguments: Mapping[str, object], schema: CallSchema) -> str:
    """Write a call in the compact grammar. Raises ValueError if the grammar cannot express the arguments."""
    unknown = set(arguments) - {parameter.name for parameter in schema.parameters}
    if name != schema.name or unknown:
        raise ValueError(f"expected a call of {schema.name} with {schema.usage}, found {name} with {sorted(arguments)}")
    text, separator, absent = name, " ", ""
    for parameter in schema.parameters:
        if parameter.name not in arguments:
            if parameter.required:
                raise ValueError(f"{name}: {parameter.name} is missing")
            absent = absent or parameter.name
            continue
        if absent:
            raise ValueError(f"{name}: {parameter.name} cannot be given without {absent}")
        value = str(arguments[parameter.name])
        if not _expressible(parameter.kind, value):
            raise ValueError(f"{name}: {parameter.name} must be of kind {parameter.kind}, found {value!r}")
        text += separator + value
        separator = "\n" if parameter.kind == "line" else " "
    return text


def _take(kind: Kind, left: str) -> tuple[str | None, str]:
    """Split the next argument off `left`, the unparsed rest of a call, which begins with a separator. Return the
    argument and the new rest, or (None, left) if there is no argument."""
    if kind in ("word", "int"):
        stripped = left.lstrip()
        found = _WORD.match(stripped)
        return (found.group(), stripped[found.end() :]) if found else (None, left)
    if not left:
        return None, left
    text = left[1:]
    if kind in TO_THE_END:
        return text, ""
    line, newline, more = text.partition("\n")
    return (line, newline + more) if line.strip() else (None, left)


def _expressible(kind: Kind, value: str) -> bool:
    match kind:
        case "word":
            return _WORD.fullmatch(value) is not None and not value[0].isspace()
        case "int":
            return _INT.fullmatch(value) is not None
        case "line":
            return "\n" not in value and bool(value.strip())
        case "numbered":
            return unnumbered(value) is None
        case "rest":
            return True


def _shown(value: str) -> str:
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
