"""Tasks on disk: reading and writing Harbor task directories.

Étude's fields live under [metadata.etude], and every key that Étude does not know is kept. A new directory appears only
when it is complete. A symbolic link in a task stands for its target, which must lie inside the task's folder.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from etude.harness.schema import SchemaError, builtin_schema
from etude.tasks import toml
from etude.tasks.harbor import Harbor, parse_harbor, parts_of
from etude.tasks.task import Cell, Split, Task, TaskError, TaskLimits, split_of

SCHEMA_VERSION = "1.0"
REFERENCE_DIFF = "solution/patch.diff"
REPOSITORY = "environment/repo"
"""The workspace's files, relative to the task's directory."""
WORKDIR = "/work"
FOREIGN_LIMITS = TaskLimits(turns=500, tool_calls=1000, tokens=2_000_000, wall_seconds=3600.0)
"""Limits of a Harbor task without Étude's fields, since Harbor has no limits of turns and tokens. They are wide on
purpose: the run's own budgets are the effective limits."""


def write_task(task: Task, files: Mapping[str, bytes]) -> None:
    """Write `task.directory`: task.toml, instruction.md and `files`, by relative path. An existing directory is
    replaced."""
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
    """Return the contents of task.toml: the configuration that was read, updated with the task's fields."""
    config = copy.deepcopy(task.config)
    if "version" not in config:
        config.setdefault("schema_version", SCHEMA_VERSION)
    config.setdefault("task", {}).setdefault("name", f"etude/{task.id}")
    metadata = config.setdefault("metadata", {})
    metadata["category"] = task.category
    ours = metadata.setdefault("etude", {})
    ours.update(id=task.id, split=task.split.value, family=task.family, kind=task.kind)
    if task.cell is not None:
        ours["cell"] = task.cell.value
    ours["limits"] = ours.get("limits", {}) | asdict(task.limits)
    ours["provenance"] = copy.deepcopy(task.provenance)
    if task.verifier:
        ours["verifier"] = copy.deepcopy(task.verifier)
    ours["deterministic"] = list(task.deterministic)
    if task.strict or task.without:
        ours.update(strict=task.strict, without=list(task.without))
    return config


def read_task(directory: Path, allowed: Collection[Split]) -> Task:
    """Read a task of one of the allowed splits. A Harbor task without Étude's fields gets its split from its name.
    Raises SplitViolation for another split, and TaskError for a malformed directory."""
    config = _read_config(directory / "task.toml")
    harbor = parse_harbor(config, directory / "task.toml")
    problem = Fields(directory / "task.toml", config)
    identity = problem.text("metadata.etude.id", directory.name)
    family = problem.text("metadata.etude.family", problem.text("task.name", directory.name))
    defaults = _declared_limits(harbor)
    limits = problem.table("metadata.etude.limits")
    known: dict[str, Any] = {}
    for field in fields(TaskLimits):
        value = limits.get(field.name, getattr(defaults, field.name))
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise problem.error(f"metadata.etude.limits.{field.name}", "a number above 0", value)
        known[field.name] = float(value) if isinstance(field.default, float) else int(value)
    split_text = problem.text("metadata.etude.split", split_of(family).value)
    if split_text not in list(Split):
        raise problem.error("metadata.etude.split", "train, dev or test", split_text)
    cell_text = problem.text("metadata.etude.cell", "")
    if cell_text and cell_text not in list(Cell):
        raise problem.error("metadata.etude.cell", " or ".join(Cell), cell_text)
    task = Task(
        id=identity,
        instruction=_instruction(directory, harbor),
        category=problem.text("metadata.category", "unknown"),
        split=Split(split_text),
        family=family,
        kind=problem.text("metadata.etude.kind", ""),
        directory=directory,
        limits=TaskLimits(**known),
        provenance=dict(problem.table("metadata.etude.provenance")),
        verifier=dict(problem.table("metadata.etude.verifier")),
        deterministic=problem.texts("metadata.etude.deterministic"),
        strict=problem.flag("metadata.etude.strict"),
        without=_tools(problem),
        config=config,
        cell=Cell(cell_text) if cell_text else None,
    )
    return task.require(*allowed)


def list_tasks(folder: Path, split: Split) -> list[Task]:
    """Return all tasks of a split, sorted by name, from a folder laid out as `<split>/<task>/`."""
    below = folder / split.value
    if not below.is_dir():
        return []
    directories = sorted(path for path in below.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [read_task(directory, {split}) for directory in directories]


def find_tasks(folder: Path) -> list[Path]:
    """Return every task directory at or below a folder, sorted. The search does not descend into a task."""
    if not folder.is_dir():
        raise TaskError(f"{folder}: expected a folder")
    if (folder / "task.toml").is_file():
        return [folder]
    below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [found for path in below if not path.is_symlink() for found in find_tasks(path)]


def read_files(directory: Path, below: str = REPOSITORY) -> dict[str, bytes]:
    """Return the contents of all files in a folder of a task, by their path relative to that folder."""
    return {name: path.read_bytes() for name, path in list_files(directory, below).items()}


def list_files(directory: Path, below: str) -> dict[str, Path]:
    """Return the location of each file in a folder of a task, by its path relative to that folder. Raises TaskError for
    a link that leaves the folder, is broken or loops."""
    root = directory / below
    if not root.is_dir():
        raise TaskError(f"{root}: expected a folder")
    return dict(_walk(root, "", (root.resolve(),)))


def _walk(folder: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder. `above` are the resolved parent folders, outermost first. Raises TaskError for a
    link to one of them, or out of the outermost."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            goal = Path(os.path.realpath(path))
            if not goal.is_relative_to(above[0]) or not goal.exists() or goal in above:
                raise TaskError(
                    f"{path}: expected a plain file, found a link to {path.readlink()}: links must stay inside "
                    "their folder and lead to an existing file"
                )
        if path.is_dir():
            yield from _walk(path, f"{prefix}{path.name}/", (*above, path.resolve()))
        elif path.is_file():
            yield prefix + path.name, path


def task_digest(task: Task) -> str:
    """Return a hash of everything that decides a verdict: the environment, the tests, and how they are run."""
    return _digest(task, f"etude-task/3 {_grading_settings(task)}\n", ("environment", "tests", "steps"))


def gated_digest(task: Task) -> str:
    """Return a hash of everything on which the result of the task's gate (`etude tasks check --gate`) depends: all that
    `task_digest` covers, and the solutions."""
    return _digest(task, f"etude-gate/1 {task_digest(task)}\n", ("solution",))


def stamp_of(task: Task) -> str:
    """Return a hash that changes with everything that `gated_digest` covers, and with the gate's stored evidence. It
    uses the files' sizes and times instead of their contents, so it can be computed before every grading."""
    digest = hashlib.sha256(_grading_settings(task).encode())
    for below in ("environment", "tests", "steps", "solution", "evidence"):
        for name, path in list_files(task.directory, below).items() if (task.directory / below).is_dir() else ():
            seen = path.stat()
            facts = (below, name, seen.st_mode, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
            digest.update(f"{facts}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _grading_settings(task: Task) -> str:
    settings = {key: task.config.get(key) for key in ("agent", "artifacts", "environment", "steps", "verifier")}
    return json.dumps([task.limits.verifier_seconds, task.verifier, settings], sort_keys=True, default=str)


def _digest(task: Task, head: str, folders: tuple[str, ...]) -> str:
    digest = hashlib.sha256(head.encode())
    for below in folders:
        # A folder may be missing: a task with a pulled image needs no environment/, one with several steps no tests/.
        for name, path in list_files(task.directory, below).items() if (task.directory / below).is_dir() else ():
            data = path.read_bytes()
            digest.update(
                f"{below}/{name} {path.stat().st_mode & 0o100} {len(data)}\n".encode(errors="surrogateescape")
            )
            digest.update(data)
    return digest.hexdigest()


def _declared_limits(harbor: Harbor) -> TaskLimits:
    """Return the limits that Harbor's own fields declare; they apply where Étude's fields set none."""
    foreign = "etude" not in harbor.metadata
    limits = FOREIGN_LIMITS if foreign else TaskLimits()
    if harbor.agent.timeout_sec is not None:
        limits = replace(limits, wall_seconds=harbor.agent.timeout_sec)
    if foreign or "timeout_sec" in harbor.verifier.model_fields_set:
        limits = replace(limits, verifier_seconds=harbor.verifier.timeout_sec)
    return limits


def _instruction(directory: Path, harbor: Harbor) -> str:
    """Return the task's instruction. Those of several steps are joined, because the agent does all in one rollout."""
    parts = parts_of(harbor)
    texts = [_read_text(part.folder(directory) / "instruction.md").rstrip("\n") for part in parts]
    if not harbor.steps:
        return texts[0]
    return "\n\n".join(f"Step {number} of {len(texts)}\n\n{text}" for number, text in enumerate(texts, 1))


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


def _tools(problem: Fields) -> tuple[str, ...]:
    names = problem.texts("metadata.etude.without")
    for name in names:
        try:
            builtin_schema(name)
        except SchemaError as error:
            raise problem.error("metadata.etude.without", "names of tools", name) from error
    return names


class Fields:
    """Typed access to fields of a task.toml by dotted name. A wrong value raises a TaskError that names the file, the
    field and what was expected."""

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

    def flag(self, field: str) -> bool:
        value = self._value(field, False)
        if not isinstance(value, bool):
            raise self.error(field, "true or false", value)
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        value = self._value(field, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(field, "a list of texts", value)
        return tuple(value)

    def _value(self, field: str, default: object) -> object:
        *parents, last = field.split(".")
        return (self.table(".".join(parents)) if parents else self.config).get(last, default)
