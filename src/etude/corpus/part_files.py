"""What is left of the sources' parts, one parquet file per part: written in one piece, and read document by document.

A file appears under its name only once it is complete, so a killed run goes on with the parts that are left.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from etude.corpus.cleaning import language_of
from etude.corpus.dedup import SIGNATURE, normalised_digest, signatures
from etude.corpus.document import Document
from etude.corpus.errors import CorpusError
from etude.corpus.repository_order import imports_of
from etude.corpus.sources import Source
from etude.journal.files import disk_problem, sync

_BATCH = 4 << 20
"""Characters of the documents that are signed and written at once."""
_CACHED = 8
_EXAMPLES = 3
_SCHEMA = pa.schema(
    [
        ("text", pa.large_binary()),
        ("kind", pa.string()),
        ("origin", pa.string()),
        ("name", pa.string()),
        ("repository", pa.string()),
        ("imports", pa.list_(pa.string())),
        ("size", pa.int64()),
        ("contaminated", pa.bool_()),
        ("digest", pa.binary(16)),
        ("signature", pa.binary(4 * SIGNATURE)),
    ]
)


class TaskTexts(Protocol):
    """Tells which documents hold something of a task. It is pickled."""

    @property
    def identity(self) -> str:
        """Digest of what it looks for."""
        ...

    def __call__(self, document: Document) -> bool: ...


@dataclass(slots=True)
class Tally:
    """Counts of the files of one origin, in one or more parts."""

    files: int = 0
    bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of files by reason (see REASONS)."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The first names of files that were dropped, by reason."""
    redacted: Counter[str] = field(default_factory=Counter)
    """Number of redactions by kind of secret."""

    def drop(self, reason: str, name: str) -> None:
        self.dropped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _EXAMPLES:
            examples.append(name)

    def add(self, other: Tally) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.dropped.update(other.dropped)
        self.redacted.update(other.redacted)
        for reason, names in other.examples.items():
            self.examples[reason] = [*self.examples.get(reason, ()), *names][:_EXAMPLES]

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("files", "bytes", "dropped", "examples", "redacted")}

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Tally:
        return cls(**values | {name: Counter(values[name]) for name in ("dropped", "redacted")})


def write_part(source: Source, path: Path, contamination: TaskTexts | None) -> None:
    """Read a part, clean its files and write what is left, with digests and signatures."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    batch: list[tuple[Document, int, bool]] = []
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with pq.ParquetWriter(aside, _SCHEMA, compression="zstd", compression_level=1) as writer:
            held = 0
            for document, size in _cleaned(source, tallies):
                batch.append((document, size, contamination is not None and contamination(document)))
                held += len(document.text)
                if held >= _BATCH:
                    writer.write_table(_table(batch, source.ordered))
                    batch, held = [], 0
            if batch:
                writer.write_table(_table(batch, source.ordered))
            counts = {origin: tally.as_json() for origin, tally in tallies.items()}
            writer.add_key_value_metadata({"tallies": json.dumps(counts)})
        sync(aside)
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        raise CorpusError(f"cannot write {path}: {disk_problem(error)}") from error
    finally:
        aside.unlink(missing_ok=True)


def _cleaned(source: Source, tallies: dict[str, Tally]) -> Iterator[tuple[Document, int]]:
    rules = source.rules
    for found in source.part.read(source.wanted):
        name, origin, repository = map(_plain, (found.name, found.origin, found.repository))
        tally = tallies[origin]
        tally.files += 1
        tally.bytes += found.size
        reason = rules.refuses_name(name, found.size, found.language)
        text = ""
        if not reason:
            reason, text = ("table", "") if found.data is None else rules.clean(found, tally.redacted)
        if reason:
            tally.drop(reason, name)
        else:
            yield Document(text, _plain(found.kind), source.name, origin, name, repository), found.size


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _table(batch: list[tuple[Document, int, bool]], ordered: bool) -> pa.Table:
    documents = [document for document, _, _ in batch]
    texts = [document.text for document in documents]
    digests = [bytes.fromhex(normalised_digest(text))[:16] for text in texts]
    columns = [
        [text.encode("utf-8", "surrogatepass") for text in texts],
        *([getattr(document, name) for document in documents] for name in ("kind", "origin", "name", "repository")),
        [imports_of(document.text, language_of(document.name)) if ordered else () for document in documents],
        [size for _, size, _ in batch],
        [found for _, _, found in batch],
        digests,
        [row.tobytes() for row in signatures(texts)],
    ]
    return pa.table([pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)], _SCHEMA)


class PartFiles:
    """The documents of all parts, numbered in their order. Columns are read whole, texts by row group."""

    def __init__(self, files: list[tuple[str, Path]]) -> None:
        """`files` are the parts' sources and files, in order."""
        self.tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
        """By source and origin."""
        self._groups: list[tuple[Path, int]] = []
        rows: list[int] = []
        sources: list[int] = []
        self._names = list(dict.fromkeys(source for source, _ in files))
        for source, path in files:
            with pq.ParquetFile(path) as table:
                kept = json.loads(table.metadata.metadata[b"tallies"])
                for group in range(table.num_row_groups):
                    self._groups.append((path, group))
                    rows.append(table.metadata.row_group(group).num_rows)
                    sources.append(self._names.index(source))
            for origin, values in kept.items():
                self.tallies[source, origin].add(Tally.of_json(values))
        self._firsts = np.cumsum([0, *rows])
        self._source_of = np.repeat(np.array(sources, dtype=np.int32), rows)
        self._group = lru_cache(maxsize=_CACHED)(self._read_group)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def source_is(self, name: str) -> NDArray[np.bool_]:
        return np.equal(self._source_of, self._names.index(name) if name in self._names else -1)

    def source(self, index: int) -> str:
        return self._names[int(self._source_of[index])]

    def column(self, name: str) -> Any:
        """Return one of the short columns, as an arrow array."""
        columns = [_read(path, group, [name])[name].combine_chunks() for path, group in self._groups]
        return pa.chunked_array(columns, _SCHEMA.field(name).type).combine_chunks()

    def numbers(self, name: str) -> NDArray[Any]:
        return np.asarray(self.column(name).to_numpy(zero_copy_only=False))

    def array(self, name: str, dtype: Any, width: int, path: Path) -> NDArray[Any]:
        """Return a column of numbers, [documents, width], as a file that is mapped into memory."""
        # Written rather than stored through a mapping: on a full disk a store into mapped pages kills the process.
        with path.open("wb") as whole:
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
            np.lib.format.write_array_header_1_0(whole, {**header, "shape": (len(self), width)})
            for file, group in self._groups:
                column = _read(file, group, [name])[name].combine_chunks()
                data = np.frombuffer(column.buffers()[1], dtype=dtype).reshape(-1, width)
                whole.write(data[column.offset : column.offset + len(column)].data)
        mapped: NDArray[Any] = np.load(path, mmap_mode="r")
        return mapped

    def document(self, index: int) -> Document:
        group = int(np.searchsorted(self._firsts, index, side="right")) - 1
        row = {name: column[index - self._firsts[group]].as_py() for name, column in self._group(group).items()}
        text = row.pop("text").decode("utf-8", "surrogatepass")
        return Document(text=text, source=self.source(index), **row)

    def _read_group(self, group: int) -> dict[str, Any]:
        table = _read(*self._groups[group], ["text", "kind", "origin", "name", "repository"])
        return {name: table[name] for name in table.column_names}


def _read(path: Path, group: int, columns: list[str]) -> pa.Table:
    try:
        with pq.ParquetFile(path) as table:
            return table.read_row_group(group, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise CorpusError(f"{path} is damaged: delete {path.parent} and write the corpus again") from error
