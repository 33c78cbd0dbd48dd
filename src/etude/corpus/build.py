"""Builds the pretraining corpus of a run: gather (collect, drop duplicates, hold out), then write (tokenise, shard).

There are two steps because the tokenizer is trained on the texts that the first step gathers. The result of each step
depends only on its inputs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.corpus.collect import Document, python_paths, read_folder, read_generated, read_stdlib, stdlib
from etude.corpus.dedup import near_duplicates, same_text
from etude.corpus.errors import CorpusError
from etude.corpus.shards import Tokens, write_shards
from etude.recipe.corpus import CorpusRecipe
from etude.text import TextTokenizer


@dataclass(slots=True)
class Provenance:
    """Counts of the documents of one package, folder or generator."""

    source: str
    origin: str
    collected: int = 0
    exact_duplicates: int = 0
    near_duplicates: int = 0
    held_out: int = 0
    kept: int = 0
    """Number of documents left for the train split, without duplicates and held-out documents."""


@dataclass(frozen=True, slots=True)
class Gathered:
    train: list[Document]
    valid: list[Document]
    provenance: list[Provenance]

    def texts(self) -> Iterator[str]:
        """The train split's texts, the only ones that a tokenizer may be trained on."""
        return (document.text for document in self.train)


def gather(recipe: CorpusRecipe, documents_folder: Path | None = None) -> Gathered:
    """Collect, deduplicate and split documents. `documents_folder` is required for the source "generated"."""
    documents = list(_collect(recipe, documents_folder))
    if not documents:
        raise CorpusError("the corpus has no documents: check corpus.sources and corpus.folders")
    book: dict[tuple[str, str], Provenance] = {}
    for document in documents:
        _entry(book, document).collected += 1
    first_copies = _keep(documents, same_text([d.text for d in documents]), book, "exact_duplicates")
    near = near_duplicates([d.text for d in first_copies], recipe.near_duplicate_similarity)
    kept = _keep(first_copies, near, book, "near_duplicates")
    train: list[Document] = []
    valid: list[Document] = []
    for document in kept:
        held = is_held_out(document.text, recipe.held_out_share)
        (valid if held else train).append(document)
        entry = _entry(book, document)
        entry.held_out += held
        entry.kept += not held
    return Gathered(train, valid, [book[key] for key in sorted(book)])


def is_held_out(text: str, share: float) -> bool:
    """Whether a document is held out. A hash of its text alone decides: no seed, order or other document matters."""
    point = int.from_bytes(hashlib.sha256(b"etude-held-out/1:" + text.encode("utf-8", "surrogatepass")).digest()[:8])
    return point / 2**64 < share


def write_corpus(folder: Path, gathered: Gathered, tokenizer: TextTokenizer, recipe: CorpusRecipe) -> dict[str, Any]:
    """Write the tokenised documents as shards. Return the manifest, which names every source and its version."""
    kinds = Counter(document.kind for document in gathered.train)
    return write_shards(
        folder,
        {"train": _encode(gathered.train, tokenizer), "valid": _encode(gathered.valid, tokenizer)},
        vocab_size=tokenizer.vocab_size,
        shard_tokens=recipe.shard_tokens,
        provenance={"sources": [asdict(entry) for entry in gathered.provenance], "kinds": dict(kinds)},
    )


def code_bytes(recipe: CorpusRecipe) -> int:
    """Bytes of the code files that `gather` would read, without reading them (for time estimates)."""
    roots = [Path(folder).expanduser() for folder in recipe.folders] + [stdlib()] * ("stdlib" in recipe.sources)
    return sum(path.stat().st_size for root in roots for path in python_paths(root, recipe.max_file_bytes))


def _collect(recipe: CorpusRecipe, documents_folder: Path | None) -> Iterator[Document]:
    if "stdlib" in recipe.sources:
        yield from read_stdlib(recipe.max_file_bytes)
    for folder in recipe.folders:
        yield from read_folder(Path(folder).expanduser(), recipe.max_file_bytes)
    if "generated" in recipe.sources:
        if documents_folder is None:
            raise CorpusError('corpus.sources has "generated" but no folder of generated documents was given')
        yield from read_generated(documents_folder)


def _entry(book: dict[tuple[str, str], Provenance], document: Document) -> Provenance:
    return book.setdefault((document.source, document.origin), Provenance(document.source, document.origin))


def _keep(
    documents: list[Document], flags: list[bool], book: dict[tuple[str, str], Provenance], counter: str
) -> list[Document]:
    for document, dropped in zip(documents, flags, strict=True):
        if dropped:
            entry = _entry(book, document)
            setattr(entry, counter, getattr(entry, counter) + 1)
    return [document for document, dropped in zip(documents, flags, strict=True) if not dropped]


def _encode(documents: list[Document], tokenizer: TextTokenizer) -> Iterator[Tokens]:
    encoded = tokenizer.documents(document.text for document in documents)
    for document, ids in zip(documents, encoded, strict=True):
        yield Tokens(np.array(ids, dtype=np.uint32), document.kind, document.source)
