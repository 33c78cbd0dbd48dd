"""Reads a verifier's inputs from its task: the settings table in task.toml, and JSON files. A mistake raises a
TaskError that names the file, the field, what was expected and what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from etude.tasks.task import Task, TaskError

_Model = TypeVar("_Model", bound=BaseModel)
_Read = TypeVar("_Read")
_LONGEST = 200


def read_table(task: Task, model: type[_Model]) -> _Model:
    """Return [metadata.etude.verifier] without `type`, validated as `model`. Raises TaskError if it is invalid."""
    try:
        return model.model_validate({key: value for key, value in task.verifier.items() if key != "type"})
    except ValidationError as error:
        raise _task_error(f"{task.directory / 'task.toml'}: metadata.etude.verifier.", error) from error


def read_json(path: Path, kind: type[_Read]) -> _Read:
    """Return the contents of a JSON file, validated as `kind`. Raises TaskError if the file is missing or invalid."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except OSError as error:
        raise TaskError(f"{path}: expected a file: {error.strerror}") from error
    except ValidationError as error:
        raise _task_error(f"{path}: ", error) from error


def _task_error(place: str, error: ValidationError) -> TaskError:
    first = error.errors()[0]
    where = (place + ".".join(map(str, first["loc"]))).rstrip(".: ")
    message = first["msg"].replace("Invalid JSON", "expected JSON") if first["type"] == "json_invalid" else first["msg"]
    return TaskError(f"{where}: {message}, found {repr(first['input'])[:_LONGEST]}")
