"""The tool glob: finds files by name.

`*` and `?` match within one path component, `**` matches across folders, `[...]` matches one of the listed characters.
A pattern without a slash is searched for in every folder.
"""

from __future__ import annotations

from typing import Any

from etude.harness.search.name_patterns import name_pattern
from etude.harness.tools.context import Output, ToolContext


async def glob(run: ToolContext, arguments: dict[str, Any]) -> Output:
    pattern = arguments["pattern"].strip().removeprefix("./")
    matches = name_pattern(pattern if "/" in pattern else f"**/{pattern}").fullmatch
    found = [path for path in await run.workspace.files() if matches(path)]
    return Output(found or [run.say("no_name")])
