"""The tool grep: returns every line of every text file that matches the pattern, as `file:line text`.

Workspaces whose files are in a folder on disk are searched by ripgrep, all others by RE2 (`search/grep_query.py` says
why). The output has the same form and order in both cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from etude.harness.editing.diff import as_text
from etude.harness.paths import within
from etude.harness.search import BadPattern
from etude.harness.search.grep_query import Line, Query, matching
from etude.harness.search.name_patterns import braced, name_pattern
from etude.harness.tools.context import Output, ToolContext, ToolProblem
from etude.harness.workspaces.workspace import OverlayWorkspace, clean_path
from etude.sandbox.contract import RequestRefused

MAX_MATCHES = 500
MAX_CONTEXT = 20


async def grep(run: ToolContext, arguments: dict[str, Any]) -> Output:
    query = _query(run, arguments)
    most = max(1, min(arguments.get("most", MAX_MATCHES), MAX_MATCHES))
    found = await _on_disk(run, query, most)
    if found is None:
        found = await _in_memory(run, query, most)
    if not found:
        if query.path != "." and not any(within(path, query.path) for path in await run.workspace.files()):
            raise ToolProblem(run.say("no_file", path=query.path, hint=""))
        return Output([run.say("no_match")])
    context = max(0, min(arguments.get("context", 0), MAX_CONTEXT))
    if context:
        said = await _with_context(run, found, context)
    else:
        said = [f"{line.path}:{line.number} {line.text}" for line in found]
    return Output([*said, run.say("cut_text")] if len(found) == most else said)


def _query(run: ToolContext, arguments: dict[str, Any]) -> Query:
    """Convert the arguments of a grep call to a query. A pattern between slashes is a regular expression."""
    pattern = arguments["pattern"].strip("\n")
    regex = len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/")
    return Query(
        pattern[1:-1] if regex else pattern,
        regex,
        clean_path(arguments.get("path") or ".", run.workspace.workdir),
        arguments.get("glob", "").strip().removeprefix("./"),
        arguments.get("ignore_case", False),
        arguments.get("word", False),
        arguments.get("everything", False),
    )


async def _on_disk(run: ToolContext, query: Query, most: int) -> list[Line] | None:
    """Search with ripgrep. None if the files are not in a folder on disk, or ripgrep is not installed."""
    workspace = run.workspace
    if not isinstance(workspace, OverlayWorkspace):
        return None
    try:
        return await workspace.find(query, most)
    except BadPattern as error:
        raise ToolProblem(run.say("bad_pattern", problem=error)) from None


async def _in_memory(run: ToolContext, query: Query, most: int) -> list[Line]:
    found: list[Line] = []
    plain = not (query.regex or query.ignore_case or query.word)
    for path in _named(await run.workspace.files(), query):
        try:
            text = as_text(await run.workspace.read(path))
        except (RequestRefused, FileNotFoundError):
            continue
        if not text or (plain and query.text not in text):
            continue
        lines = text.removesuffix("\n").split("\n")
        try:
            hits = matching(lines, query)
        except ValueError as error:
            raise ToolProblem(run.say("bad_pattern", problem=error)) from None
        found += [Line(path, n, line) for n, (line, hit) in enumerate(zip(lines, hits, strict=True), 1) if hit]
        if len(found) >= most:
            return found[:most]
    return found


def _named(files: Sequence[str], query: Query) -> Iterator[str]:
    without, glob = query.glob.startswith("!"), query.glob.removeprefix("!")
    names = [name_pattern(each if "/" in each else f"**/{each}") for each in braced(glob)] if glob else []
    for path in files:
        named = not names or any(name.fullmatch(path) for name in names) != without
        if within(path, query.path) and (named or path == query.path):
            yield path


async def _with_context(run: ToolContext, found: Sequence[Line], context: int) -> list[str]:
    """Format matches with context lines as ripgrep does: a context line as `file-line text`, and `--` between groups
    that are not adjacent."""
    said: list[str] = []
    for path, group in groupby(found, key=lambda line: line.path):
        matches = {line.number: line.text for line in group}
        lines = dict(enumerate(await _lines(run, path), 1)) | matches
        around = {n for number in matches for n in range(number - context, number + context + 1)}
        last = 0
        for number in sorted(around & lines.keys()):
            if said and number != last + 1:
                said.append("--")
            sign = ":" if number in matches else "-"
            said.append(f"{path}{sign}{number} {lines[number]}")
            last = number
    return said


async def _lines(run: ToolContext, path: str) -> list[str]:
    try:
        data = await run.workspace.read(path)
    except (RequestRefused, FileNotFoundError):
        return []  # the file was just deleted, so there are no context lines
    return data.decode("utf-8", "replace").removesuffix("\n").split("\n")
