"""Add a tool: a schema as data, a function, and the agent can call it.

Run: .venv/bin/python examples/add_a_tool.py [--url http://localhost:8000/v1 --model MODEL]
The tool outlines a Python file. A policy offers its schema to the model, and the toolbox checks each call against it
and carries it out, so both get the same list. The key of an endpoint comes from the environment, OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

from etude.harness import (
    Budgets,
    ChatPolicy,
    Endpoint,
    OverlayWorkspace,
    ScriptedPolicy,
    load_profile,
    run_agent,
)
from etude.harness.outcome import Outcome
from etude.harness.policy import Policy
from etude.harness.schema import parse_schema
from etude.harness.toolbox import Output, Toolbox, ToolLimits, ToolProblem
from etude.harness.tools.files import read_text
from etude.trace.conversation.messages import ToolCall, Turn

OUTLINE = parse_schema(
    """
name = "outline"
description = "The classes and functions of a Python file, with their lines."
access = "read"  # may run beside other calls that only read
place = "path"   # the parameter that names what it touches

[[parameters]]
name = "path"
kind = "word"
description = "A Python file."
""",
    "outline",
)
FILES = {"shop.py": b"class Cart:\n    def total(self):\n        return sum(self.prices)\n\n\ndef main():\n    ...\n"}


async def outline(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    text = await read_text(toolbox, arguments["path"])  # what is no text file is told to the model
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ToolProblem(f"not Python: {error.msg} in line {error.lineno}") from error  # and so is this
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return Output([f"{node.lineno} {node.name}" for node in sorted(found, key=lambda node: node.lineno)])


async def main(arguments: Sequence[str] = ()) -> Outcome:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="of an OpenAI-compatible endpoint; a script plays the model without one")
    parser.add_argument("--model", default="model")
    options = parser.parse_args(arguments)
    profile = load_profile("full")
    schemas = [*profile.schemas(), OUTLINE]
    toolbox = Toolbox(schemas, OverlayWorkspace(FILES), ToolLimits(), profile, tools={"outline": outline})
    call = ToolCall("1", "outline", {"path": "shop.py"}, '{"path": "shop.py"}')
    policy: Policy = ScriptedPolicy([Turn(calls=(call,)), "shop.py has a class and two functions."], profile)
    if options.url:
        policy = ChatPolicy(Endpoint(options.url, options.model, api_key=os.environ.get("OPENAI_API_KEY", "")), schemas)
    task = profile.open("What is in shop.py? Look with outline.", "example")
    return await run_agent(task, policy, toolbox, Budgets(turns=10), profile)


if __name__ == "__main__":
    done = asyncio.run(main(sys.argv[1:]))
    print(*(event.output for event in done.tools), done.final_text or done.error, sep="\n")
