"""The tool finish, with which the agent ends the run."""

from __future__ import annotations

from typing import Any

from etude.harness.tools.context import Output, ToolContext


async def finish(run: ToolContext, arguments: dict[str, Any]) -> Output:
    message = arguments.get("message", "").strip()
    return Output(message.split("\n") if message else [], finished=True)
