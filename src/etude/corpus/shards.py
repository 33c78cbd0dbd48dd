"""Token shards on disk: documents stored end to end, with their boundaries, kinds and sources, read by memory maps.

    <split>-00000.tokens.npy      every token of the shard's documents, uint16 (uint32 for large vocabularies)
    <split>-00000.documents.npy   one row per document: start, length, kind, source
    manifest.json                 names, sizes and digests of all files; the kinds and sources; the provenance

    unfinished.json               while they are written: what is finished so far

Every file is renamed into place and the manifest is written last. A corpus without a manifest is unfinished: the next
call goes on after its last whole shard. Opening checks every digest once: a damaged shard is an error, never a
different corpus.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from etude.corpus.errors import CorpusError
from etude.journal.files import disk_problem, write_atomically

FORMAT = "etude-corpus/1"
MANIFEST = "manifest.json"
_UNFINISHED = "unfinished.json"
_DOCUMENT = np.dtype([("start", "<i8"), ("length", "<i8"), ("kind", "<i4"), ("source", "<i4")])


@dataclass(frozen=True, slots=True)
class Tokens:
    ids: NDArray[np.uint32]
    kind: str
    source: str


DocumentsFrom = Callable[[int], Iterable[Tokens]]
"""A split's documents, from the one with this number on."""


class Shards:
    """One split's documents, numbered across all its shard files."""

    def __init__(
        self,
        tokens: list[NDArray[Any]],
        documents: list[NDArray[Any]],
        kinds: list[str],
        sources: list[str],
        weights: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`weights` are those of the named sources of code."""
        self._tokens = tokens
        self._rows = documents
        self._first = np.cumsum([0, *(len(rows) for rows in documents)])
        every = np.concatenate(documents) if documents else np.zeros(0, dtype=_DOCUMENT)
        self.lengths: NDArray[np.int64] = every["length"].astype(np.int64)
        self._kind_of, self._source_of = every["kind"], every["source"]
        self._kinds, self._sources = kinds, sources
        self.weights = weights

    def __len__(self) -> int:
        return len(self.lengths)

    def document(self, index: int) -> NDArray[np.int64]:
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        row = self._rows[shard][index - self._first[shard]]
        return self._tokens[shard][row["start"] : row["start"] + row["length"]].astype(np.int64)

    def of_kind(self, kind: str) -> NDArray[np.int64]:
        return self._matching(self._kind_of, self._kinds, kind)

    def of_source(self, source: str) -> NDArray[np.int64]:
        return self._matching(self._source_of, self._sources, source)

    def reaching(self, position: int) -> NDArray[np.int64]:
        """Return the indices of the documents that have a next token to predict at this position, counted from 0. They
        have more than position + 1 tokens."""
        return np.flatnonzero(self.lengths > position + 1)

    @staticmethod
    def _matching(column: NDArray[Any], names: list[str], name: str) -> NDArray[np.int64]:
        if name not in names:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(column == names.index(name)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Corpus:
    train: Shards
    valid: Shards
    manifest: dict[str, Any]


def write_shards(
    folder: Path,
    splits: Mapping[str, DocumentsFrom],
    *,
    vocab_size: int,
    shard_tokens: int,
    provenance: Mapping[str, Any],
    weights: Mapping[str, float] = MappingProxyType({}),
    identity: str = "",
) -> dict[str, Any]:
    """Write all splits and return the manifest. If an earlier call for documents of the same identity was interrupted,
    go on after its last shard; without an identity, begin anew."""
    (folder / MANIFEST).unlink(missing_ok=True)  # without a manifest the folder counts as unfinished
    state = _unfinished(folder, identity)
    names, files = state["names"], state["shards"]
    for split, documents_from in splits.items():
        finished = [entry for name, entry in files.items() if name.startswith(f"{split}-")]
        held: list[Tokens] = []
        held_tokens, shard = 0, len(finished)
        for document in documents_from(sum(entry["documents"] for entry in finished)):
            held.append(document)
            held_tokens += len(document.ids)
            if held_tokens >= shard_tokens:
                files |= _write_shard(folder, f"{split}-{shard:05d}", held, names, vocab_size)
                _write_file(folder / _UNFINISHED, json.dumps(state).encode())
                held, held_tokens, shard = [], 0, shard + 1
        if held or shard == 0:
            files |= _write_shard(folder, f"{split}-{shard:05d}", held, names, vocab_size)
            _write_file(folder / _UNFINISHED, json.dumps(state).encode())
    totals: dict[str, dict[str, Any]] = {}
    for split in splits:
        finished = [entry for name, entry in files.items() if name.startswith(f"{split}-")]
        totals[split] = {key: sum(entry[key] for entry in finished) for key in ("documents", "tokens")}
        totals[split]["kinds"] = dict(sum((Counter(entry["kinds"]) for entry in finished), Counter()))
    manifest = {
        "format": FORMAT,
        "vocab_size": vocab_size,
        "kinds": names["kind"],
        "sources": names["source"],
        "totals": totals,
        "provenance": dict(provenance),
        "shards": files,
    } | ({"weights": dict(weights)} if weights else {})
    _write_file(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    (folder / _UNFINISHED).unlink()
    return manifest


def _unfinished(folder: Path, identity: str) -> dict[str, Any]:
    """Return what an interrupted call wrote of the same documents, or nothing."""
    path = folder / _UNFINISHED
    if identity and path.exists():
        state: dict[str, Any] = json.loads(path.read_bytes())
        if state["identity"] == identity:
            return state
    return {"identity": identity, "names": {"kind": [], "source": []}, "shards": {}}


def open_corpus(folder: Path) -> Corpus:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise CorpusError(f"no corpus in {folder} ({error.strerror}): write it first") from error
    except ValueError as error:
        raise CorpusError(f"{path} is not JSON: delete {folder} and write the corpus again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CorpusError(f"{path}: expected format {FORMAT}; delete {folder} and write the corpus again")
    splits: dict[str, tuple[list[NDArray[Any]], list[NDArray[Any]]]] = {"train": ([], []), "valid": ([], [])}
    for name, entry in sorted(manifest["shards"].items()):
        tokens, rows = splits[name.rpartition("-")[0]]
        tokens.append(_map(folder / f"{name}.tokens.npy", entry["tokens_digest"]))
        rows.append(_map(folder / f"{name}.documents.npy", entry["documents_digest"]))
    known = (manifest["kinds"], manifest["sources"], manifest.get("weights", {}))
    return Corpus(Shards(*splits["train"], *known), Shards(*splits["valid"], *known), manifest)


def _map(path: Path, digest: str) -> NDArray[Any]:
    try:
        found = _digest_of_file(path)
    except OSError as error:
        raise CorpusError(f"corpus shard {path} cannot be read: {error.strerror}") from error
    if found != digest:
        raise CorpusError(f"corpus shard {path} is damaged: delete {path.parent} and write the corpus again")
    array: NDArray[Any] = np.load(path, mmap_mode="r") if path.stat().st_size > 1024 else np.load(path)
    return array


def _write_shard(
    folder: Path, name: str, documents: list[Tokens], names: dict[str, list[str]], vocab_size: int
) -> dict[str, dict[str, Any]]:
    rows = np.zeros(len(documents), dtype=_DOCUMENT)
    rows["length"] = [len(document.ids) for document in documents]
    rows["start"] = np.cumsum(rows["length"]) - rows["length"]
    for column in ("kind", "source"):
        for index, document in enumerate(documents):
            value = getattr(document, column)
            if value not in names[column]:
                names[column].append(value)
            rows[column][index] = names[column].index(value)
    width = np.uint16 if vocab_size <= 2**16 else np.uint32
    tokens = np.concatenate([np.zeros(0, dtype=np.uint32), *(document.ids for document in documents)])
    if (highest := int(tokens.max(initial=0))) >= vocab_size:
        raise CorpusError(f"a document has token {highest}, but the tokenizer's vocabulary ends at {vocab_size - 1}")
    tokens = tokens.astype(width, copy=False)
    kinds = Counter(document.kind for document in documents)
    entry: dict[str, Any] = {"documents": len(documents), "tokens": len(tokens), "kinds": dict(kinds)}
    for part, array in (("tokens", tokens), ("documents", rows)):
        entry[f"{part}_digest"] = _digest(_write_file(folder / f"{name}.{part}.npy", _npy(array)))
    return {name: entry}


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # in pieces


def _write_file(path: Path, data: bytes) -> bytes:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise CorpusError(f"cannot write {path}: {disk_problem(error, len(data))}") from error
    return data
