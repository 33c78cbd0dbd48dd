"""grep: every line of every text file that holds the pattern, as `file:line text`.

Regular expressions are matched by RE2 (through pyarrow), whose time is linear in the text: no pattern that a model
writes can hang the harness.
"""

from __future__ import annotations

from typing import Any

from etude.harness.diff import as_text
from etude.harness.toolbox import Output, Toolbox, ToolProblem
from etude.sandbox.contract import RequestRefused

MAX_MATCHES = 500


async def grep(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    pattern = arguments["pattern"].strip("\n")
    regex = pattern[1:-1] if len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/") else None
    found: list[str] = []
    for path in await toolbox.workspace.files():
        try:
            text = as_text(await toolbox.workspace.read(path))
        except (RequestRefused, FileNotFoundError):
            continue
        if not text or (regex is None and pattern not in text):
            continue
        lines = text.removesuffix("\n").split("\n")
        try:
            hits = [pattern in line for line in lines] if regex is None else _matches(lines, regex)
        except ValueError as error:
            raise ToolProblem(toolbox.say("bad_pattern", problem=error)) from None
        found += [f"{path}:{n} {line}" for n, (line, hit) in enumerate(zip(lines, hits, strict=True), 1) if hit]
        if len(found) >= MAX_MATCHES:
            return Output([*found[:MAX_MATCHES], toolbox.say("cut_text")])
    return Output(found or [toolbox.say("no_match")])


def _matches(lines: list[str], regex: str) -> list[bool]:
    # Imported here: it takes a fifth of a second, and most runs never use it.
    import pyarrow as pa
    import pyarrow.compute as pc

    hits: list[bool] = pc.match_substring_regex(pa.array(lines, pa.string()), pattern=regex).to_pylist()
    return hits
