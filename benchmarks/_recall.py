"""Recall of code search by description: given a docstring, is its function among the first ten hits?

Five published packages are cut into chunks and indexed as the search tool does it, with docstrings removed. A query is
the first paragraph of a function's docstring, if it has at least five words and no other function of the package has
the same one. It counts as found if a chunk of its function is among the first ten of the package's function chunks.

- `recall_lexical`: the search tool's BM25.
- `recall_meaning_alone`: the embedding that ships with the semantic extra.
- `recall_semantic`: both fused by rank, as the tool answers with the extra.
- `recall_plain_words`: the same BM25 over plain words with identifiers left whole, as a baseline without any knowledge
  of code.

No setting was tuned on these packages (docs/log/search.md names the packages that were used for tuning).

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
"""Packages with at least 900 functions: in a small package, ten hits would be a large share of all functions."""
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
    """First and last line of the function, from 1, in the text without docstrings."""
    last: int


def recall(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """Measure recall over `packages`; print one line per package and return the means."""
    embedder = ShippedEmbedder()
    each = {name: asyncio.run(_package(name, embedder)) for name in packages}
    queries = sum(one["queries"] for one in each.values())
    # Every package has the same weight: a large one says no more about how search does elsewhere.
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
    """Chunks of the query's function: the one with its first line, and others in its lines under the same name."""
    touching = {
        number: chunk
        for number, chunk in index.chunks.items()
        if chunk.path == query.path and chunk.first <= query.last and chunk.last >= query.first
    }
    name = next(chunk.name for chunk in touching.values() if chunk.first <= query.first <= chunk.last)
    return {number for number, chunk in touching.items() if chunk.name == name}


def read_package(name: str) -> tuple[dict[str, bytes], list[Query]]:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed: run make setup"
    assert spec.submodule_search_locations, f"{name} is a single module; expected a package"
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
    """Return the module without its functions' docstrings, and a query for each docstring that is long enough."""
    lines = text.split("\n")
    gone: set[int] = set()
    found: list[tuple[str, int, int]] = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, Function) or (doc := ast.get_docstring(node)) is None:
            continue
        held = node.body[0]
        own = range(held.lineno, (held.end_lineno or held.lineno) + 1)
        if own[0] == node.lineno or (len(node.body) > 1 and node.body[1].lineno <= own[-1]):
            continue  # The docstring shares a line with code, so it cannot be removed by lines.
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
