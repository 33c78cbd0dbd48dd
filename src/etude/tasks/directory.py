"""Tasks on disk: Harbor task directories.

Étude's fields live under [metadata.etude]; every key that Étude does not know is kept. A directory appears whole or not
at all.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from etude.tasks import toml
from etude.tasks.task import Split, Task, TaskError, TaskLimits, split_of

SCHEMA_VERSION = "1.0"
REPOSITORY = "environment/repo"
"""The workspace's files, relative to the task's directory."""
WORKDIR = "/work"


def write_task(task: Task, files: Mapping[str, bytes]) -> None:
    """Writes `task.directory` with these files (paths relative to it) and a task.toml, replacing what was there."""
    temporary = task.directory.with_name(f".{task.directory.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    contents = {
        **files,
        "task.toml": toml.dumps(task_config(task)).encode(),
        "instruction.md": (task.instruction.rstrip("\n") + "\n").encode(),
    }
    for folder in sorted({(temporary / name).parent for name in contents}):
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        path = temporary / name
        path.write_bytes(data)
        if name.endswith(".sh"):
            path.chmod(0o755)
    if task.directory.exists():
        shutil.rmtree(task.directory)
    temporary.rename(task.directory)


def task_config(task: Task) -> dict[str, Any]:
    """task.toml as it will be written: the task's fields over what was read."""
    config = copy.deepcopy(task.config)
    if "version" not in config:
        config.setdefault("schema_version", SCHEMA_VERSION)
    config.setdefault("task", {}).setdefault("name", f"etude/{task.id}")
    metadata = config.setdefault("metadata", {})
    metadata["category"] = task.category
    ours = metadata.setdefault("etude", {})
    ours.update(id=task.id, split=task.split.value, family=task.family, kind=task.kind)
    ours["limits"] = ours.get("limits", {}) | asdict(task.limits)
    ours["provenance"] = copy.deepcopy(task.provenance)
    if task.verifier:
        ours["verifier"] = copy.deepcopy(task.verifier)
    ours["deterministic"] = list(task.deterministic)
    return config


def read_task(directory: Path, allowed: Collection[Split]) -> Task:
    """Reads a task of one of the allowed splits; SplitViolation for another, TaskError for a malformed directory.

    A Harbor task without Étude's fields gets its split from its name.
    """
    config = _read_config(directory / "task.toml")
    problem = _Reader(directory / "task.toml", config)
    version = problem.text("schema_version", problem.text("version", SCHEMA_VERSION))
    if version.split(".")[0] != "1":
        raise TaskError(f"{directory / 'task.toml'}: schema_version: expected 1.x, found {version!r}")
    identity = problem.text("metadata.etude.id", directory.name)
    family = problem.text("metadata.etude.family", problem.text("task.name", directory.name))
    limits = problem.table("metadata.etude.limits")
    known: dict[str, Any] = {}
    for field in fields(TaskLimits):
        value = limits.get(field.name, field.default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise problem.error(f"metadata.etude.limits.{field.name}", "a number above 0", value)
        known[field.name] = float(value) if isinstance(field.default, float) else int(value)
    split_text = problem.text("metadata.etude.split", split_of(family).value)
    if split_text not in list(Split):
        raise problem.error("metadata.etude.split", "train, dev or test", split_text)
    task = Task(
        id=identity,
        instruction=_read_text(directory / "instruction.md").rstrip("\n"),
        category=problem.text("metadata.category", "unknown"),
        split=Split(split_text),
        family=family,
        kind=problem.text("metadata.etude.kind", ""),
        directory=directory,
        limits=TaskLimits(**known),
        provenance=dict(problem.table("metadata.etude.provenance")),
        verifier=dict(problem.table("metadata.etude.verifier")),
        deterministic=problem.texts("metadata.etude.deterministic"),
        config=config,
    )
    return task.require(*allowed)


def list_tasks(folder: Path, split: Split) -> list[Task]:
    """All tasks of a split below a folder that holds `<split>/<task>/`, by name."""
    below = folder / split.value
    if not below.is_dir():
        return []
    directories = sorted(path for path in below.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [read_task(directory, {split}) for directory in directories]


def read_files(directory: Path, below: str = REPOSITORY) -> dict[str, bytes]:
    """The files of a task's folder by their paths relative to it; links are refused."""
    root = directory / below
    if not root.is_dir():
        raise TaskError(f"{root}: expected a folder")
    found: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            raise TaskError(f"{path}: expected a plain file, found a link")
        if path.is_file():
            found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def task_digest(task: Task) -> str:
    """Of what decides a verdict: the environment, the tests, and how they are run."""
    verifier = json.dumps(task.verifier, sort_keys=True, default=str)
    digest = hashlib.sha256(f"etude-task/2 {task.limits.verifier_seconds} {verifier}\n".encode())
    for below in ("environment", "tests"):
        for name, data in read_files(task.directory, below).items():
            digest.update(f"{below}/{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: expected TOML: {error}") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TaskError(f"{path}: expected a file, there is none") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: expected UTF-8 text") from error
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error


class _Reader:
    """Looks up dotted fields of a task.toml, and names file, field and expectation when one is of the wrong type."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.config = config

    def error(self, field: str, expected: str, found: object) -> TaskError:
        return TaskError(f"{self.path}: {field}: expected {expected}, found {found!r}")

    def table(self, field: str) -> Mapping[str, Any]:
        place: Mapping[str, Any] = self.config
        walked: list[str] = []
        for part in field.split("."):
            walked.append(part)
            inner = place.get(part, {})
            if not isinstance(inner, Mapping):
                raise self.error(".".join(walked), "a table", inner)
            place = inner
        return place

    def text(self, field: str, default: str) -> str:
        value = self._value(field, default)
        if not isinstance(value, str):
            raise self.error(field, "text", value)
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        value = self._value(field, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(field, "a list of texts", value)
        return tuple(value)

    def _value(self, field: str, default: object) -> object:
        *parents, last = field.split(".")
        return (self.table(".".join(parents)) if parents else self.config).get(last, default)
