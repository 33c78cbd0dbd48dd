"""Reads one side of the comparison that finds overlaps, for example of tasks with a training corpus. What the path
contains decides whether it is read as tasks, documents, token shards, traces or plain files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from etude.tasks.directory import find_tasks, read_task
from etude.tasks.overlap.items import Item, added_lines, item_of_text, items_of_task
from etude.tasks.task import Split

_DOCUMENTS = (".jsonl", ".jsonl.zst")
_LARGEST_FILE = 4 << 20


class OverlapError(Exception):
    """One of the two paths whose contents are to be compared cannot be read. The message says what was expected."""


def read_side(path: Path, split: Split | None = None) -> Iterator[Item]:
    """Yield the items to compare (files of tasks, documents, traces or plain files) that are at `path`. If `split` is
    given, tasks of other splits are skipped. Raises OverlapError if there are no items."""
    count = 0
    for item in _items(path, split):
        count += 1
        yield item
    if not count:
        raise OverlapError(
            f"{path}: expected tasks, documents (*.jsonl, *.jsonl.zst), a corpus's shards, traces (*.parquet) or "
            "source files, found none"
        )


def _items(path: Path, split: Split | None) -> Iterator[Item]:
    if path.is_file() and path.name.endswith(_DOCUMENTS):
        yield from _documents(path)
    elif path.is_file() and path.suffix == ".parquet":
        yield from _traces(path)
    elif not path.is_dir():
        raise OverlapError(f"{path}: expected a folder, or a file of documents or traces")
    elif find_tasks(path):
        yield from _tasks(path, split)
    elif (path / "manifest.json").is_file():
        yield from _shards(path)
    elif documents := sorted(file for file in path.rglob("*") if file.name.endswith(_DOCUMENTS)):
        for file in documents:
            yield from _documents(file)
    else:
        yield from _traces(path) if any(path.glob("*.parquet")) else _files(path)


def _tasks(folder: Path, split: Split | None) -> Iterator[Item]:
    for directory in find_tasks(folder):
        task = read_task(directory, set(Split))
        if split is None or task.split is split:
            yield from items_of_task(task)


def _documents(path: Path) -> Iterator[Item]:
    with path.open("rb") as raw:
        stream: Any = zstandard.ZstdDecompressor().stream_reader(raw) if path.suffix == ".zst" else raw
        try:
            for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8"), 1):
                yield _document(line, f"{path.name}:{number}")
        except (zstandard.ZstdError, UnicodeDecodeError) as error:
            raise OverlapError(f"{path} is damaged: {error}") from error


def _document(line: str, place: str) -> Item:
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("no object")
        text = row.get("text", row.get("content"))
        text = "\n".join(_message_texts(row["messages"])) if text is None else text
        if not isinstance(text, str):
            raise ValueError("no text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OverlapError(f'{place}: expected a JSON object with "text", "content" or "messages": {error}') from error
    return item_of_text(place, text)


def _traces(path: Path) -> Iterator[Item]:
    from etude.trace import read_traces

    for trace in read_traces(path):
        item = item_of_text(trace.id, "\n".join(_message_texts(trace.messages)))
        item.add_task(trace.task)
        for name, text in added_lines(trace.diff).items():
            item.add_file(name, text)
        yield item


def _message_texts(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        parts = [part.get("text") for part in content] if isinstance(content, list) else [content]
        yield from (part for part in parts if isinstance(part, str))
        for call in message.get("tool_calls") or ():
            yield str(call["function"]["arguments"])


def _shards(folder: Path) -> Iterator[Item]:
    """Yield the documents in a corpus's token shards, decoded with the tokenizer.json that a run stores beside its
    corpus."""
    from etude.corpus import open_corpus
    from etude.text import open_tokenizer

    place = folder.parent / "tokenizer.json"
    if not place.is_file():
        raise OverlapError(f"{place}: expected the tokenizer of the shards in {folder.name}, there is no file")
    tokenizer, corpus = open_tokenizer(place), open_corpus(folder)
    for name, shards in (("train", corpus.train), ("valid", corpus.valid)):
        for index in range(len(shards.lengths)):
            yield item_of_text(f"{folder.name}/{name}:{index}", tokenizer.text(shards.document(index)))


def _files(folder: Path) -> Iterator[Item]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        hidden = any(part.startswith(".") or part in ("node_modules", "__pycache__") for part in name.split("/"))
        if hidden or path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            continue
        item = Item(name)
        item.add_file(path.name, path.read_bytes().decode("utf-8", "replace"))
        if item.prints:
            yield item
