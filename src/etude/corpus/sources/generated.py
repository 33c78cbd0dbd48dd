"""Documents that a generator wrote: every *.jsonl.zst of a folder."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from etude.corpus.document import Found, Wanted
from etude.corpus.errors import CorpusError


@dataclass(frozen=True, slots=True)
class GeneratedPart:
    """One file. Each line is a JSON object: "text", "kind" and optionally "generator" and "version"."""

    path: Path
    modified: int
    length: int

    def size(self, wanted: Wanted) -> int:
        return self.length

    def read(self, wanted: Wanted) -> Iterator[Found]:
        with self.path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            try:
                for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8"), 1):
                    yield _generated(line, f"{self.path.name}:{number}")
            except (zstandard.ZstdError, UnicodeDecodeError) as error:
                raise CorpusError(f"{self.path} is damaged ({error}): delete the folder and generate again") from error


def generated_parts(folder: Path) -> Iterator[GeneratedPart]:
    files = sorted(folder.glob("*.jsonl.zst"))
    if not files:
        raise CorpusError(f"no generated documents (*.jsonl.zst) in {folder}: generate them first")
    for path in files:
        about = path.stat()
        yield GeneratedPart(path, about.st_mtime_ns, about.st_size)


def _generated(line: str, place: str) -> Found:
    try:
        record = json.loads(line)
        text, kind = str(record["text"]), str(record["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f'{place}: expected a JSON object with "text" and "kind" ({error})') from error
    origin = " ".join(str(record[key]) for key in ("generator", "version") if key in record) or "generator"
    return Found(place, text, len(text), origin, kind=kind)
