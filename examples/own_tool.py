"""Bring your own tool: a schema, a function, and the agent can call it. Run: .venv/bin/python examples/own_tool.py

The tool here counts lines. A policy offers the schema to its model and the toolbox carries the call out, so both are
given the same list of schemas; a scripted policy stands in for the model.
"""

from __future__ import annotations

import asyncio
from typing import Any

from etude.harness import (
    Budgets,
    Output,
    OverlayWorkspace,
    ScriptedPolicy,
    Toolbox,
    ToolLimits,
    ToolSchema,
    Turn,
    load_profile,
    run_agent,
)
from etude.harness.policy import ToolCall
from etude.harness.schema import ToolParameter

COUNT = ToolSchema("count", "Count the lines of a file.", (ToolParameter("path", "word"),))


async def count(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    data = await toolbox.workspace.read(arguments["path"])
    return Output([f"{len(data.splitlines())} lines"])


async def main() -> str:
    profile = load_profile("compact")
    workspace = OverlayWorkspace({"calc.py": b"def double(x):\n    return x * 2\n"})
    toolbox = Toolbox([*profile.schemas(), COUNT], workspace, ToolLimits(), profile, tools={"count": count})
    called = Turn("", calls=(ToolCall("1", "count", {"path": "calc.py"}, "count calc.py"),))
    policy = ScriptedPolicy([called, "> finish"], profile)
    outcome = await run_agent(profile.open("how long is calc.py", "example"), policy, toolbox, Budgets(), profile)
    return outcome.tools[0].output


if __name__ == "__main__":
    print(asyncio.run(main()))
