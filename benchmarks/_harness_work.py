"""The workload of the harness benchmark: a generated repository, and a fixed script of what every agent does in it.

The script cycles through reads, one-line edits, folder listings and to-do lists, with one tool call in most turns and
two in every fifth: only tools that start no process. All agents run the same script, each in its own workspace.
"""

from __future__ import annotations

import random
from typing import Any

MODULES, LINES = 40, 120
TASK = "Rename the constants of every module of pack, and keep a list of what is done."


def repository() -> dict[str, bytes]:
    words = random.Random(0)
    names = "count total width price order left right value index share limit level".split()  # noqa: SIM905

    def module(number: int) -> bytes:
        lines = [f"LIMIT_{number}_{line} = {line}" for line in range(0, LINES, 4)]
        for line in range(0, LINES, 4):
            one, other, result = words.sample(names, 3)
            lines[line:line] = [f"def {one}_{line}({other}, {result}):", f"    return {other} + {result} * {line}", ""]
        return ("\n".join(lines) + "\n").encode()

    return {f"pack/module{number}.py": module(number) for number in range(MODULES)}


def turn(number: int) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """Text and tool calls of turn `number`, counted from 0."""
    module = number // 5 % MODULES
    path = f"pack/module{module}.py"
    match number % 5:
        case 0:
            return f"I look at module {module}.", [("read", {"path": path})]
        case 1:
            other = f"pack/module{(module + 7) % MODULES}.py"
            calls = [("read", {"path": other, "first": 1, "last": 40}), ("list", {"folder": "pack"})]
            return "What does it use, and what else is there?", calls
        case 2:
            old, new = f"LIMIT_{module}_8 = 8", f"MOST_{module}_8 = {number}"
            return "This constant is misnamed.", [("replace", {"path": path, "old": old, "new": new})]
        case 3:
            return "The lines around it:", [("read", {"path": path, "first": 80, "last": 110})]
        case _:
            items = [f"x module {done}" for done in range(module + 1)] + ["- the others"]
            return "", [("todo", {"items": "\n".join(items)})]


def compact_turn(number: int) -> str:
    """A similar turn in the syntax of the compact profile."""
    module = number // 5 % MODULES
    path = f"pack/module{module}.py"
    match number % 5:
        case 0:
            return f"I look at module {module}.\n> read {path}"
        case 1:
            return f"What does it use?\n> read pack/module{(module + 7) % MODULES}.py 1 40\n> list pack"
        case 2:
            return f"This constant is misnamed.\n> edit {path} 12 MOST_{module}_8 = {number}"
        case 3:
            return f"The lines around it:\n> read {path} 80 110"
        case _:
            return f"> grep LIMIT_{module}_8"
