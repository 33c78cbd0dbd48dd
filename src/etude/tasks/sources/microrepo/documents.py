"""Generates documents for pretraining, only from material reserved for training: train families, train instances, seen
kinds of bugs.

There are three kinds of document. "module": code with assertions. "lookup": a short numbered listing, then some of its
lines, each with file and line number; it teaches copying, which must be learnt first. "fix": a FAIL line, the numbered
file, and the edit that fixes it. That edit usually rewrites the whole failing function, otherwise only the wrong line.
In some documents a failed edit comes first, which rewrites a correct line unchanged. The code of the harness's `read`
tool makes the listings, and edits are written as calls of its `edit` tool, so that the model learns what the agent will
see.

Fixes show every seen kind of bug, including those that demonstrations leave out. RL can only reinforce what the model
sometimes does, so a kind may be rare in the documents but must not be missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import zstandard

from etude.harness.schema import builtin_schema
from etude.harness.tools.files import numbered
from etude.journal import write_atomically
from etude.tasks.sources.microrepo import name_words
from etude.tasks.sources.microrepo.bugs import SEEN_KINDS
from etude.tasks.sources.microrepo.function import Function, draw_inputs, outcomes
from etude.tasks.sources.microrepo.pools import pool_of
from etude.tasks.sources.microrepo.repository import draw_broken, fail_line, show
from etude.tasks.task import Split
from etude.text.calls import format_call

VERSION = 8
PER_FILE = 2000
SHARES = (("lookup", 0.22), ("fix", 0.66), ("module", 0.12))
REWRITES = 0.85
"""Share of "fix" documents, among those without a failed edit, in which the edit rewrites the whole function."""
RETRIES = 0.12
"""Share of "fix" documents (which show a bug's repair) that begin with a failed edit, of a line that is correct. An
agent that has never seen a retry generates nothing after its first failure."""
POOL = pool_of(Split.TRAIN)


@dataclass(frozen=True, slots=True)
class Document:
    kind: str
    text: str
    generator: str = "microrepo"
    version: int = VERSION


def write_documents(folder: Path, count: int, seed: int) -> list[Path]:
    """Write `documents-NNNNN.jsonl.zst`, keeping files that exist. The same arguments give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for first in range(0, count, PER_FILE):
        path = folder / f"documents-{first // PER_FILE:05d}.jsonl.zst"
        paths.append(path)
        if path.exists():
            continue
        documents = [make_document(seed, index) for index in range(first, min(first + PER_FILE, count))]
        lines = "".join(json.dumps(asdict(document)) + "\n" for document in documents)
        write_atomically(path, zstandard.compress(lines.encode(), 3))
    return paths


def make_document(seed: int, index: int) -> Document:
    """Generate one document. Equal arguments give equal documents."""
    rng = random.Random(f"microrepo-documents/{VERSION}/{seed}/{index}")
    kind = rng.choices([name for name, _ in SHARES], [share for _, share in SHARES])[0]
    if kind == "lookup":
        return Document(kind, _lookup(rng))
    if kind == "module":
        return Document(kind, _module(rng))
    return Document(kind, _fix(rng, rng.choice(SEEN_KINDS)))


def listing(file: str, text: str) -> str:
    """Return a `read` call for a file, followed by the tool's output."""
    lines = text.removesuffix("\n").split("\n")
    shown = "\n".join(numbered(lines, 1, len(lines)))
    return f"{format_call('read', {'path': file}, builtin_schema('read').call_schema())}\n{shown}\n"


def edit_call(file: str, lines: Iterable[tuple[int, str]]) -> str:
    """Return a call of the `edit` tool. Its lines need no indentation: the tool keeps that of the replaced lines."""
    text = "\n".join(f"{number} {line.strip()}" for number, line in lines)
    return format_call("edit", {"path": file, "lines": text}, builtin_schema("edit").call_schema())


def _functions(rng: random.Random, count: int) -> list[Function]:
    functions: list[Function] = []
    for _ in range(count):
        functions.append(POOL.draw(rng, [f.name for f in functions]))
    return functions


def _file(rng: random.Random) -> str:
    return f"{rng.choice(name_words.MODULES)}.py"


def _lookup(rng: random.Random) -> str:
    file = _file(rng)
    text = _functions(rng, 1)[0].text
    lines = text.removesuffix("\n").split("\n")
    asked = rng.sample(range(len(lines)), min(len(lines), rng.randint(2, 3)))
    return listing(file, text) + "".join(f"{file} {place + 1} {lines[place].strip()}\n" for place in asked)


def _module(rng: random.Random) -> str:
    functions = _functions(rng, rng.choice((1, 2)))
    asserts: list[str] = []
    for function in functions:
        inputs = draw_inputs(function, rng, 3)
        for arguments, outcome in zip(inputs, outcomes(function.source, function.name, inputs), strict=True):
            if outcome.value is not None:
                asserts.append(f"assert {function.name}({', '.join(map(repr, arguments))}) == {show(outcome.value)}\n")
    return "".join(function.text for function in functions) + "".join(asserts)


def _fix(rng: random.Random, kind: str) -> str:
    broken = draw_broken(POOL, kind, rng, inputs=10)
    # Tasks seldom have a second function in a file, but copying from longer files teaches copying from short ones.
    others = [POOL.draw(rng, [broken.function.name]) for _ in range(rng.choice((0, 1)))]
    functions = [broken.function, *others]
    rng.shuffle(functions)
    damaged = broken.mutation.apply(broken.function.source).split("\n")
    text, first = "", 0
    for function in functions:
        if function is broken.function:
            first = text.count("\n") + 1
            text += "\n".join(damaged) + "\n"
        else:
            text += function.text
    file = _file(rng)
    fixed = list(enumerate(broken.function.source.split("\n"), first))
    # Leave out the def line and the comments, which cannot be wrong.
    code = [(number, line) for number, line in fixed[1:] if not line.strip().startswith("#")]
    alone = [pair for pair, wrong in zip(fixed, damaged, strict=True) if pair[1] != wrong]
    shown = f"{fail_line(broken)}\n{listing(file, text)}"
    in_vain = [pair for pair in code if pair not in alone]
    if in_vain and rng.random() < RETRIES:
        return f"{shown}{edit_call(file, [rng.choice(in_vain)])}\n{fail_line(broken)}\n{edit_call(file, alone)}\n"
    return f"{shown}{edit_call(file, code if rng.random() < REWRITES else alone)}\n"
