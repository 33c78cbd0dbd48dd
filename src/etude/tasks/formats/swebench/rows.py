"""Reads SWE-bench rows from a file (jsonl, json, parquet) or a repository of tasks (version 5), without validating
them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from etude.tasks.task import TaskError

_COLUMNS = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "problem_statement": "problem_statement.md",
    "eval_script": "eval.sh",
}
"""File in which a task repository stores each of these columns."""
_NO_CONTEXT = frozenset((*_COLUMNS.values(), "task.yaml", "tests.json", "hints.md", "test_assets", ".git"))


@dataclass(frozen=True, slots=True)
class Row:
    place: str
    """Where the row was read, for error messages: the file, and the number of its line or row."""
    values: Mapping[str, Any]
    folder: Path | None = None
    """The task's folder in a task repository, with its Dockerfile and assets."""

    def context(self) -> dict[str, bytes]:
        """Return the Dockerfile and the files that it may copy, but not the patches, tests and hints of the task."""
        return {} if self.folder is None else _files(self.folder, lambda first: first not in _NO_CONTEXT)

    def assets(self) -> dict[str, bytes]:
        """Return the files that tests need and a text patch cannot carry, by path in the workspace."""
        below = self.folder / "test_assets" if self.folder else None
        return _files(below) if below and below.is_dir() else {}


def read_rows(source: Path) -> Iterator[Row]:
    """Read the rows of a source. Raises TaskError if it cannot be read, and for a task repository without tasks."""
    if source.is_dir():
        return _repository(source)
    readers = {".jsonl": _lines, ".json": _document, ".parquet": _table}
    if source.suffix not in readers:
        raise TaskError(f"{source}: expected a .jsonl, .json or .parquet file, or a folder with sweb.yaml and tasks/")
    if not source.is_file():
        raise TaskError(f"{source}: expected a file, there is none")
    return readers[source.suffix](source)


def _lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}: line {number}"
                yield Row(place, _object(_json(line, place), place))


def _document(path: Path) -> Iterator[Row]:
    found = _json(path.read_bytes(), str(path))
    if isinstance(found, dict):  # The document is an object of rows, keyed by id.
        found = list(found.values())
    if not isinstance(found, list):
        raise TaskError(f"{path}: expected a list of rows, or an object of them by id")
    for number, values in enumerate(found, 1):
        place = f"{path}: row {number}"
        yield Row(place, _object(values, place))


def _table(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=64):
            for values in batch.to_pylist():
                number += 1
                yield Row(f"{path}: row {number}", values)
    except (pyarrow.ArrowException, OSError) as error:
        raise TaskError(f"{path}: expected a parquet file: {error}") from error


def _repository(folder: Path) -> Iterator[Row]:
    config = _yaml(folder / "sweb.yaml")
    splits = config.get("splits", ["test"])
    if not isinstance(splits, list):
        raise TaskError(f"{folder / 'sweb.yaml'}: splits: expected a list, found {splits!r}")
    files = sorted((folder / "tasks").glob("*/task.yaml"))
    if not files:
        raise TaskError(f"{folder / 'tasks'}: expected folders with a task.yaml, there are none")
    for file in files:
        values = _yaml(file)
        if values.get("split", "test") not in splits:
            continue  # The task is in the repository but not published, for example because it was dropped.
        if values.get("instance_id", file.parent.name) != file.parent.name:
            raise TaskError(f"{file}: instance_id: expected the folder's name, found {values['instance_id']!r}")
        values.setdefault("instance_id", file.parent.name)
        values.update({column: _text(file.parent / name) for column, name in _COLUMNS.items()})
        tests = file.parent / "tests.json"
        values.update(_object(_json(_text(tests).encode(), str(tests)), str(tests)))
        yield Row(str(file.parent), values, file.parent)


def _yaml(path: Path) -> dict[str, Any]:
    try:
        # Load every scalar as text, so that YAML's rules for numbers, dates and "no" do not apply.
        found = yaml.load(_text(path), Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise TaskError(f"{path}: expected YAML: {' '.join(str(error).split())}") from error
    return dict(_object(found, str(path)))


def _json(data: bytes, place: str) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{place}: expected JSON: {error}") from error


def _object(found: object, place: str) -> Mapping[str, Any]:
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise TaskError(f"{place}: expected an object with fields, found {str(found)[:60]!r}")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError as error:
        raise TaskError(f"{path}: expected a file, there is none") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: expected UTF-8 text: {error}") from error


def _files(root: Path, take: Callable[[str], bool] = lambda first: True) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if not take(name.parts[0]):
            continue
        if path.is_symlink():
            raise TaskError(f"{path}: expected a plain file, found a link")
        if path.is_file():
            found[name.as_posix()] = path.read_bytes()
    return found
