"""Recall of docstring -> function: five published packages, cut and indexed as the search tool does it.

A query is the first paragraph of a function's docstring, of five words or more, that no other function of the package
shares; docstrings are taken out of what is indexed. It is found if a chunk of that function is among the first ten of
the chunks of all functions of the package. `recall_lexical` is the search tool's BM25, `recall_meaning_alone` the
embedding that ships, and `recall_semantic` what the tool answers with the extra: both, fused by rank. No setting was
chosen on these packages (docs/log/search.md names those it was). `recall_plain_words` is the same BM25 over words as
they are written, identifiers whole: how far search by words comes without what the tool knows of code.

    python benchmarks/_recall.py [package ...]
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import re
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from etude.harness import OverlayWorkspace
from etude.harness.chunks import ChunkIndex, ShippedEmbedder
from etude.harness.chunks.lexical import Lexical

PACKAGES = ("hypothesis", "networkx", "pydantic", "rich", "werkzeug")
"""Each with 900 functions or more: where ten hits are much of all there is, every search finds much."""
FIRST = 10
WORDS = 5
KEYS = ("recall_plain_words", "recall_lexical", "recall_semantic", "recall_meaning_alone")
NO_CODE_OF_ITS = re.compile(r"(^|/)(tests?|testing|_?vendor(ed)?|conftest\.py)(/|$)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Query:
    text: str
    path: str
    first: int
    """The function's lines, from 1, in the text without docstrings."""
    last: int


def recall(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """Prints a line per package."""
    embedder = ShippedEmbedder()
    each = {name: asyncio.run(_package(name, embedder)) for name in packages}
    queries = sum(one["queries"] for one in each.values())
    # Every package counts alike: a large one says no more of how search does elsewhere.
    means = {key: sum(one[key] for one in each.values()) / len(each) for key in KEYS}
    functions = sum(one["functions"] for one in each.values())
    return {**means, "recall_queries": queries, "recall_functions": functions, "recall_packages": each}


async def _package(name: str, embedder: ShippedEmbedder) -> dict[str, Any]:
    files, queries = read_package(name)
    index = ChunkIndex(embedder, most_new=10**9)
    begun = time.perf_counter()
    await index.refresh(OverlayWorkspace(files))
    indexed = time.perf_counter()
    numbers = [number for number in index.numbers() if index.chunks[number].kind == "function"]
    await index.embed_some(numbers)
    embedded = time.perf_counter()
    plain = Lexical()
    for number in numbers:
        chunk = index.chunks[number]
        plain.add(number, plain_words(f"{chunk.path} {chunk.name} {chunk.text}"))
    found = dict.fromkeys(KEYS, 0)
    for query in queries:
        right = targets(index, query)
        ranking = await index.rank(query.text, numbers)
        scores = plain.scores(plain_words(query.text))
        by_plain_words = sorted(scores, key=lambda number: (-round(scores[number], 9), number))
        for key, ranked in zip(
            KEYS, (by_plain_words, ranking.by_words, ranking.fused(), ranking.by_meaning), strict=True
        ):
            found[key] += not right.isdisjoint(ranked[:FIRST])
    result: dict[str, Any] = {key: round(hits / len(queries), 4) for key, hits in found.items()}
    result |= {
        "version": metadata.version(name),
        "files": len(files),
        "functions": len(numbers),
        "queries": len(queries),
    }
    result |= {"index_seconds": round(indexed - begun, 2), "embed_seconds": round(embedded - indexed, 1)}
    print(f"{name} {json.dumps(result)}", flush=True)
    return result


def plain_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def targets(index: ChunkIndex, query: Query) -> set[int]:
    """The chunks of the function: the one with its first line, and others of its lines under the same name."""
    touching = {
        number: chunk
        for number, chunk in index.chunks.items()
        if chunk.path == query.path and chunk.first <= query.last and chunk.last >= query.first
    }
    name = next(chunk.name for chunk in touching.values() if chunk.first <= query.first <= chunk.last)
    return {number for number, chunk in touching.items() if chunk.name == name}


def read_package(name: str) -> tuple[dict[str, bytes], list[Query]]:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed: make setup"
    assert spec.submodule_search_locations, f"{name} is no package"
    root = Path(spec.submodule_search_locations[0])
    files: dict[str, bytes] = {}
    queries: list[Query] = []
    for file in sorted(root.rglob("*.py")):
        path = f"{name}/{file.relative_to(root).as_posix()}"
        if NO_CODE_OF_ITS.search(path):
            continue
        stripped, asked = without_docstrings(path, file.read_text(encoding="utf-8"))
        files[path] = stripped.encode()
        queries += asked
    said: dict[str, int] = {}
    for query in queries:
        said[query.text] = said.get(query.text, 0) + 1
    return files, [query for query in queries if said[query.text] == 1]


def without_docstrings(path: str, text: str) -> tuple[str, list[Query]]:
    """The module without the docstrings of its functions, and a query for each that says enough."""
    lines = text.split("\n")
    gone: set[int] = set()
    found: list[tuple[str, int, int]] = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, Function) or (doc := ast.get_docstring(node)) is None:
            continue
        held = node.body[0]
        own = range(held.lineno, (held.end_lineno or held.lineno) + 1)
        if own[0] == node.lineno or (len(node.body) > 1 and node.body[1].lineno <= own[-1]):
            continue  # On one line with code: it cannot be taken out by lines.
        if len(node.body) == 1:
            lines[own[0] - 1] = " " * held.col_offset + "..."
            own = own[1:]
        gone.update(own)
        query = " ".join(doc.strip().split("\n\n")[0].split())
        if len(query.split()) >= WORDS:
            found.append((query, node.lineno, node.end_lineno or node.lineno))
    kept = [number for number in range(1, len(lines) + 1) if number not in gone]
    place: dict[int, int] = {}
    for new, old in enumerate(kept, 1):
        place[old] = new
    queries = [
        Query(query, path, place[first], max(place[n] for n in range(first, last + 1) if n in place))
        for query, first, last in found
    ]
    return "\n".join(lines[number - 1] for number in kept), queries


if __name__ == "__main__":
    print(json.dumps(recall(tuple(sys.argv[1:]) or PACKAGES), indent=1))
