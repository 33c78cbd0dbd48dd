"""search: find the code that fits a description. Each hit is shown as `file:first-last name` and its first lines.

The search goes by words, and by meaning as well if `Outside` has an embedder. The index is made by the first search and
kept for the run; each search sees the current files.
"""

from __future__ import annotations

from typing import Any

from etude.harness.chunks import Chunk, ChunkIndex, TooManyFiles
from etude.harness.toolbox import Output, Toolbox, ToolProblem
from etude.harness.workspace import clean_path

MOST_HITS = 10
SHOWN_LINES = 3
SHOWN_CHARACTERS = 160


async def search(toolbox: Toolbox, arguments: dict[str, Any]) -> Output:
    query = arguments["query"].strip()
    if not query:
        raise ToolProblem(toolbox.say("empty_query"))
    folder = clean_path(arguments.get("path", "."), toolbox.workspace.workdir)
    if toolbox.chunk_index is None:
        toolbox.chunk_index = ChunkIndex(toolbox.outside.embedder)
    try:
        found = await toolbox.chunk_index.search(toolbox.workspace, query, folder, MOST_HITS)
    except TooManyFiles as error:
        raise ToolProblem(toolbox.say("too_many_files", files=error)) from None
    lines = [line for chunk in found.chunks for line in _shown(chunk)] or [toolbox.say("no_code")]
    if found.problem:
        lines.append(toolbox.say("words_only", problem=found.problem))
    elif 0 < found.embedded < found.searched:
        lines.append(toolbox.say("not_all_embedded", embedded=found.embedded, searched=found.searched))
    return Output(lines)


def _shown(chunk: Chunk) -> list[str]:
    said = [line for line in chunk.text.split("\n") if line.strip()][:SHOWN_LINES]
    head = f"{chunk.path}:{chunk.first}-{chunk.last} {chunk.name}".rstrip()
    return [head, *(f"  {line[:SHOWN_CHARACTERS]}" for line in said)]
