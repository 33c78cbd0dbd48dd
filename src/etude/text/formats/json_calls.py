"""Calls whose arguments are a JSON object: what is read, and what is said of one that is not.

Strict on purpose. A call that only a guess could mend counts against the model that wrote it, and it is told why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from etude.text.calls import Arguments, CallSchema

_NAME = re.compile(r'"name"\s*:\s*"([^"\\\n]{1,60})"')
_SHOWN = 40


def read_object(text: str, what: str) -> Arguments | str:
    """The object, or the problem in one line; `what` names the text in it."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return f"{what} not JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError):
        # Numbers of thousands of digits, lists in lists in lists: JSON to the letter, of use to nobody.
        return f"{what} too large"
    return value if isinstance(value, dict) else f"{what} not a JSON object"


def write_object(value: Mapping[str, object]) -> str:
    return json.dumps(value, ensure_ascii=False)


def unknown(name: str, schemas: Mapping[str, CallSchema]) -> str | None:
    """The problem with a tool's name, if there is one."""
    if name in schemas:
        return None
    shown = " ".join(name.split())
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    tools = ", ".join(schemas)
    return f"unknown tool {shown}, tools: {tools}" if shown else f"a call without a name, tools: {tools}"


def name_in(raw: str) -> str:
    """The name in the JSON of a call that may not parse."""
    found = _NAME.search(raw)
    return found.group(1) if found else ""
