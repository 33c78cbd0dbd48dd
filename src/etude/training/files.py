"""Writes a stage's small files atomically, and turns every disk failure into a CheckpointError that names the path."""

from __future__ import annotations

from pathlib import Path

from etude.journal.files import disk_problem, write_atomically
from etude.training.errors import CheckpointError


def write_file(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise disk_error(path, len(data), error) from error


def disk_error(path: Path, size: int, error: OSError) -> CheckpointError:
    return CheckpointError(f"cannot write {path}: {disk_problem(error, size)}")
