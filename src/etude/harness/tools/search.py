"""The tool search: finds code by a description. Each hit is returned as `file:first-last name` with its first lines.

The search compares words and, if `ExternalServices` has an embedder, meaning. The first search creates the index. It is
kept for the run, and each search first updates it to the current files.
"""

from __future__ import annotations

from typing import Any

from etude.harness.chunks import Chunk, ChunkIndex, TooManyFiles
from etude.harness.tools.context import Output, ToolContext, ToolProblem
from etude.harness.workspaces.workspace import clean_path

MOST_HITS = 10
SHOWN_LINES = 3
SHOWN_CHARACTERS = 160


async def search(run: ToolContext, arguments: dict[str, Any]) -> Output:
    query = arguments["query"].strip()
    if not query:
        raise ToolProblem(run.say("empty_query"))
    folder = clean_path(arguments.get("path", "."), run.workspace.workdir)
    if run.chunk_index is None:
        run.chunk_index = ChunkIndex(run.outside.embedder)
    try:
        found = await run.chunk_index.search(run.workspace, query, folder, MOST_HITS)
    except TooManyFiles as error:
        raise ToolProblem(run.say("too_many_files", files=error)) from None
    lines = [line for chunk in found.chunks for line in _shown(chunk)] or [run.say("no_code")]
    if found.problem:
        lines.append(run.say("words_only", problem=found.problem))
    elif 0 < found.embedded < found.searched:
        lines.append(run.say("not_all_embedded", embedded=found.embedded, searched=found.searched))
    return Output(lines)


def _shown(chunk: Chunk) -> list[str]:
    said = [line for line in chunk.text.split("\n") if line.strip()][:SHOWN_LINES]
    head = f"{chunk.path}:{chunk.first}-{chunk.last} {chunk.name}".rstrip()
    return [head, *(f"  {line[:SHOWN_CHARACTERS]}" for line in said)]
