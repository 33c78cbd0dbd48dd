"""Trace files: Parquet files that are written atomically.

Invariant: every file that a reader sees is complete. A file gets its final name only after all its contents are on
disk. A killed writer leaves at most a hidden `.*.tmp`, which readers ignore and the next writer removes.

Arrow is imported by the functions that need it: most commands read and write no traces, and would start a tenth slower.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from etude.journal.files import disk_problem
from etude.trace.trace import Trace

_ROWS_AT_ONCE = 128
_PART = re.compile(r"part-([0-9]{6,})\.parquet")


class TraceError(Exception):
    """A trace file cannot be written or read; the message says which file, why, and what to do."""


class TraceWriter:
    """Appends batches of traces to a folder, as one file `part-000001.parquet` per batch.

    Use one writer per folder at a time. A second writer never overwrites a part, but takes the next free number."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in self.folder.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise TraceError(f"cannot write traces to {self.folder}: {error.strerror}") from error
        self._next = 1 + max((_part_number(file) for file in self.folder.iterdir()), default=0)

    def write(self, traces: Sequence[Trace]) -> Path | None:
        """Write one batch and return its file, which is on disk by then; None if there are no traces."""
        if not traces:
            return None
        unfinished = _write_unfinished(self.folder / f"part-{self._next:06d}.parquet", traces)
        try:
            while True:
                path = self.folder / f"part-{self._next:06d}.parquet"
                self._next += 1
                try:
                    os.link(unfinished, path)
                    return path
                except FileExistsError:
                    continue
        except OSError as error:
            raise TraceError(f"cannot write traces to {self.folder}: {error.strerror}") from error
        finally:
            unfinished.unlink(missing_ok=True)


def write_traces(path: Path, traces: Sequence[Trace]) -> None:
    """Write traces to one file, atomically replacing an old one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_unfinished(path, traces).replace(path)


def read_traces(path: Path, *, only: Collection[str] | None = None) -> Iterator[Trace]:
    """Yield the traces of a file, or of a folder's files sorted by name; with `only`, only the traces with these
    ids."""
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith("."))
    elif path.exists():
        files = [path]
    else:
        raise TraceError(f"no traces at {path}: expected a Parquet file or a folder of them")
    wanted = None if only is None else frozenset(only)
    return (trace for file in files for trace in _read_file(file, wanted))


def _read_file(path: Path, only: frozenset[str] | None) -> Iterator[Trace]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from etude.trace.columns import SCHEMA, from_batch

    try:
        with pq.ParquetFile(path) as file:
            _check_format(path, file.schema_arrow.metadata or {})
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=SCHEMA.names):
                yield from from_batch(batch, only)
    except pa.ArrowException as error:
        raise TraceError(f"trace file {path} is damaged or not a Parquet file: {_first_line(error)}") from error
    except OSError as error:
        raise TraceError(f"cannot read trace file {path}: {error.strerror or _first_line(error)}") from error


def _check_format(path: Path, metadata: dict[bytes, bytes]) -> None:
    from etude.trace.columns import FORMAT, FORMAT_KEY, READ

    found = metadata.get(FORMAT_KEY, b"").decode(errors="replace")
    if found in READ:
        return
    if found.startswith("etude-trace/"):
        raise TraceError(f"trace file {path} is {found}, this version reads {FORMAT} and older: update étude")
    raise TraceError(f"{path} is not a trace file: expected {FORMAT} in its metadata, found {found!r}")


def _write_unfinished(path: Path, traces: Sequence[Trace]) -> Path:
    """Write all traces to a temporary file beside `path`, and return its path. The caller gives it the final name."""
    import pyarrow.parquet as pq

    from etude.trace.columns import to_table

    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as out:
            pq.write_table(to_table(traces), out, compression="zstd", write_statistics=False)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise TraceError(f"cannot write trace file {path}: {disk_problem(error)}") from error
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return unfinished


def _part_number(file: Path) -> int:
    found = _PART.fullmatch(file.name)
    return int(found.group(1)) if found else 0


def _first_line(error: Any) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
