"""A linter of a few lines of shell, and a toolbox that calls it."""

from __future__ import annotations

import json
from typing import Any

from etude.harness import Toolbox, ToolCall, ToolLimits, load_profile
from etude.harness.lints import Lints, parse_linter
from etude.harness.workspaces.workspace import Workspace

FULL = load_profile("full")

SCRIPT = rb"""
echo x > left.over
grep -Hrn bad --include='*.txt' "$@" | sed 's/^\([^:]*\):\([0-9]*\):\(.*\)/\1:\2:1: error: \3  [bad]/'
! grep -rq bad --include='*.txt' "$@"
"""
"""Every line with "bad" is a problem, and something is left behind."""

LINTER = r"""
name = "shout"
programs = ["sh"]
command = "{program} ./lint.sh {targets}"
parser = "lines"
pattern = '(?P<path>[^:\n]+):(?P<line>\d+):(?P<column>\d+): error: (?P<message>.*?)(?:  \[(?P<code>\w+)\])?'
found = [1]
scope = "files"
roots = "every"
suffixes = [".txt"]
seconds = 20.0

[[configs]]
name = "lint.sh"
"""


def shouting(workspace: Workspace, linter: str = LINTER) -> Toolbox:
    toolbox = Toolbox(FULL.schemas(), workspace, ToolLimits(), FULL)
    toolbox.lints = Lints([parse_linter(linter, "shout.toml")])
    return toolbox


async def lints(toolbox: Toolbox, **arguments: Any) -> str:
    call = ToolCall("1", "lints", arguments, json.dumps(arguments))
    return (await toolbox.run(call, max_tokens=20_000, count=len)).output
