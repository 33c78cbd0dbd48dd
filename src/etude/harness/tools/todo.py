"""The tool todo: replaces the agent's to-do list, which is kept across self-summaries."""

from __future__ import annotations

from typing import Any

from etude.harness.tools.context import Output, ToolContext, ToolProblem

MARKS = {"-": "open", ">": "being done", "x": "done"}


async def todo(run: ToolContext, arguments: dict[str, Any]) -> Output:
    items = [line.strip() for line in arguments["items"].split("\n") if line.strip()]
    for item in items:
        mark, _, text = item.partition(" ")
        if mark not in MARKS or not text.strip():
            raise ToolProblem(run.say("bad_todo", line=item))
    run.todo = items
    return Output(items or [run.say("no_todo")])
