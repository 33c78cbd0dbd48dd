"""Parses and writes tool calls whose arguments are a JSON object.

Malformed JSON is never repaired by guessing: such a call is invalid, and the model is told what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from etude.text.calls import Arguments, CallSchema

_NAME = re.compile(r'"name"\s*:\s*"([^"\\\n]{1,60})"')
_SHOWN = 40


def read_object(text: str, what: str) -> Arguments | str:
    """Return the JSON object, or a one-line description of the problem that begins with `what`, such as "the call
    is"."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return f"{what} not JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError):
        # Valid JSON that Python refuses: numbers with thousands of digits, or very deep nesting.
        return f"{what} too large"
    return value if isinstance(value, dict) else f"{what} not a JSON object"


def read_arguments(name: str, text: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
    """Return a call whose arguments are the JSON object in `text`, or a one-line description of the problem."""
    if problem := unknown(name, schemas):
        return problem
    arguments = read_object(text, f"{name}: arguments are")
    return arguments if isinstance(arguments, str) else (name, arguments)


def write_object(value: Mapping[str, object]) -> str:
    return json.dumps(value, ensure_ascii=False)


def unknown(name: str, schemas: Mapping[str, CallSchema]) -> str | None:
    """Return a line that says that there is no tool of this name; None if there is one."""
    if name in schemas:
        return None
    shown = " ".join(name.split())
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    tools = ", ".join(schemas)
    return f"unknown tool {shown}, tools: {tools}" if shown else f"a call without a name, tools: {tools}"


def name_in(raw: str) -> str:
    """Return the tool's name in a call that may be invalid JSON; empty if there is none."""
    found = _NAME.search(raw)
    return found.group(1) if found else ""
