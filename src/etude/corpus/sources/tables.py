"""Tables of files, one row each: .jsonl (plain, .gz or .zst) and .parquet, with columns as The Stack has them.

The text's column is required, the others serve the filters. A row that is no JSON object, or has no text, counts as
`table`; it never ends the reading.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from etude.corpus.document import Found, Wanted
from etude.corpus.errors import CorpusError

COLUMNS: dict[str, tuple[str, ...]] = {
    "text": ("content", "text", "code"),
    "path": ("max_stars_repo_path", "path", "file_path", "filename", "name"),
    "repository": ("max_stars_repo_name", "repo_name", "repository_name", "repository", "repo"),
    "licences": ("max_stars_repo_licenses", "licenses", "detected_licenses", "license", "licence"),
    "language": ("lang", "language", "programming_language"),
}
"""The names that a column may have. The first that a table has is read."""
ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
LONGEST_LINE = 64 << 20
"""Bytes of a line of JSON beyond which it is skipped, so that memory stays bounded."""
_RANGE = 16 << 20
_ROWS = 64
_DAMAGED = (OSError, EOFError, ValueError, zstandard.ZstdError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class LinesPart:
    """The lines that begin in a range of bytes of a .jsonl file; all lines of a compressed one."""

    path: Path
    modified: int
    start: int
    stop: int

    def size(self, wanted: Wanted) -> int:
        return self.stop - self.start

    def read(self, wanted: Wanted) -> Iterator[Found]:
        with ExitStack() as stack:
            try:
                for line, size in self._lines(stack):
                    yield _found(_row(line), self.path.name, size)
            except _DAMAGED as error:
                raise CorpusError(f"{self.path} is damaged: {error}") from error

    def _lines(self, stack: ExitStack) -> Iterator[tuple[bytes | None, int]]:
        """Yield lines with their sizes; None for one that is too long."""
        file: IO[bytes] = stack.enter_context(self.path.open("rb"))
        left = self.stop - self.start
        if self.path.suffix == ".jsonl":
            if self.start:
                file.seek(self.start - 1)
                left += 1 - sum(size for _, size in _one_line(file))  # it begins in the range before
        else:
            left = 1 << 62
            file = _unpacked(file, self.path.suffix)
        while left > 0:
            for line, size in _one_line(file):
                left -= size
                if line is None or line.strip():
                    yield line, size
                break
            else:
                return


def _one_line(file: IO[bytes]) -> Iterator[tuple[bytes | None, int]]:
    """Yield the next line, once, or nothing at the end of the file."""
    line = file.readline(LONGEST_LINE)
    size = len(line)
    if size == LONGEST_LINE and not line.endswith(b"\n"):
        while rest := file.readline(LONGEST_LINE):
            size += len(rest)
            if rest.endswith(b"\n"):
                break
        yield None, size
    elif line:
        yield line, size


def _unpacked(file: IO[bytes], suffix: str) -> IO[bytes]:
    if suffix == ".gz":
        return gzip.open(file)  # type: ignore[return-value]
    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))


@dataclass(frozen=True, slots=True)
class RowsPart:
    """One row group of a .parquet file."""

    path: Path
    modified: int
    group: int
    length: int

    def size(self, wanted: Wanted) -> int:
        return self.length

    def read(self, wanted: Wanted) -> Iterator[Found]:
        try:
            with pq.ParquetFile(self.path) as table:
                names = _columns_of(table.schema_arrow.names)
                batches = table.iter_batches(batch_size=_ROWS, row_groups=[self.group], columns=list(names.values()))
                for batch in batches:
                    for row in batch.to_pylist():
                        yield _found(row, self.path.name, 0)
        except _DAMAGED as error:
            raise CorpusError(f"{self.path} is damaged: {error}") from error


def is_table(path: Path) -> bool:
    return path.name.endswith(ENDINGS)


def table_parts(path: Path, *, named: bool) -> Iterator[LinesPart | RowsPart]:
    """Yield the parts of a table. One that a recipe does not name itself, but was found, may lack the texts: it is left
    out then."""
    about = path.stat()
    if path.suffix != ".parquet":
        step = _RANGE if path.suffix == ".jsonl" else max(1, about.st_size)
        for start in range(0, about.st_size, step):
            yield LinesPart(path, about.st_mtime_ns, start, min(start + step, about.st_size))
        return
    try:
        with pq.ParquetFile(path) as table:
            groups = [table.metadata.row_group(group).total_byte_size for group in range(table.num_row_groups)]
            found = _columns_of(table.schema_arrow.names)
    except _DAMAGED as error:
        raise CorpusError(f"{path} is not a parquet file: {error}") from error
    if "text" not in found:
        if not named:
            return
        raise CorpusError(f"{path} has no text: expected a column {' or '.join(COLUMNS['text'])}")
    for group, size in enumerate(groups):
        yield RowsPart(path, about.st_mtime_ns, group, size)


def _columns_of(names: list[str]) -> dict[str, str]:
    return {
        what: next(name for name in known if name in names)
        for what, known in COLUMNS.items()
        if any(name in names for name in known)
    }


def _row(line: bytes | None) -> Mapping[str, Any]:
    try:
        row = json.loads(line or b"null")
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _found(row: Mapping[str, Any], origin: str, size: int) -> Found:
    values = {what: row[name] for what, name in _columns_of(list(row)).items()}
    path, text = values.get("path"), values.get("text")
    licences = values.get("licences")
    licences = licences if isinstance(licences, list) else [licences]
    known = text if isinstance(text, str) else None
    return Found(
        path if isinstance(path, str) else "",
        known,
        size if known is None else len(known),
        origin,
        str(values.get("repository") or ""),
        str(values.get("language") or ""),
        tuple(str(one) for one in licences if one),
    )
