"""Checkpoints of a training stage: one folder per step, which is either complete or absent.

A checkpoint is written to a temporary folder (tmp-...), synced, then renamed to step-00000123; a kill at any moment
leaves earlier checkpoints untouched. On reading, the data is checked against the stored digest, so a torn or damaged
checkpoint is skipped, never used. A checkpoint with non-finite numbers is never written, because every later resume
would start from it.

Tensors go into one safetensors file, everything else into JSON. There is no pickle, so a checkpoint cannot run code.
Tensors are written one at a time and read by mapping the file: neither needs a second copy of the state in memory.
Sharded checkpoints can be added behind the same functions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from etude.journal.files import sync, write_synced
from etude.training.errors import CheckpointError, NonFiniteError
from etude.training.files import disk_error
from etude.training.tensor_file import file_bytes, file_digest, write_tensors

_NAME = re.compile(r"step-(\d{8})")
_TENSORS, _STATE = "tensors.safetensors", "state.json"
_FORMAT = "etude-checkpoint/1"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> Path:
    """Write a checkpoint of `state` (nested dicts and lists of tensors and JSON values), and delete all but the newest
    `keep` checkpoints of the folder. Raises NonFiniteError if a tensor is not finite."""
    tensors: dict[str, torch.Tensor] = {}
    tree = _strip(state, "", tensors)
    _require_finite(tensors, f"no checkpoint of step {step} is written to {folder}")
    size = file_bytes(tensors)
    final, aside = folder / f"step-{step:08d}", folder / f"tmp-{step:08d}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        aside.mkdir()
        digest = write_tensors(aside / _TENSORS, tensors)
        head = {"format": _FORMAT, "step": step, "digest": digest, "state": tree}
        write_synced(aside / _STATE, json.dumps(head).encode())
        sync(aside)
        if final.exists():  # the same step was written before but found damaged and skipped
            shutil.rmtree(final)
        aside.rename(final)
        sync(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise disk_error(final, size, error) from error
    for _, old in _steps(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def latest_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """Return (step, path) of the newest complete checkpoint in a folder, or None. Each is checked against its digest;
    damaged ones are skipped."""
    for step, path in _steps(folder):
        try:
            _checked(path)
        except CheckpointError:
            continue
        return step, path
    return None


def load_checkpoint(path: Path, *, checked: bool = False) -> dict[str, Any]:
    """Return the state that `save_checkpoint` wrote to this path, with tensors on the CPU.

    The tensors are parts of the mapped file: copy what is to be kept, since their alignment varies and they hold the
    disk space of a deleted checkpoint. `checked` says that `latest_checkpoint` has just compared the file with its
    digest, so that it is not read twice."""
    head = _head(path) if checked else _checked(path)
    restored = _fill(head["state"], safetensors.torch.load_file(path / _TENSORS))
    if not isinstance(restored, dict):
        raise CheckpointError(f"checkpoint {path}: expected a dictionary, found {type(restored).__name__}")
    return restored


def _checked(path: Path) -> dict[str, Any]:
    """Return the checkpoint's head, after comparing the tensors' file with its digest."""
    head = _head(path)
    try:
        digest = file_digest(path / _TENSORS)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    if digest != head["digest"]:
        raise CheckpointError(f"checkpoint {path} is damaged: {_TENSORS} does not match its digest")
    return head


def _head(path: Path) -> dict[str, Any]:
    try:
        head = json.loads((path / _STATE).read_bytes())
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {_STATE} is not JSON") from error
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        found = head.get("format") if isinstance(head, dict) else type(head).__name__
        raise CheckpointError(f"checkpoint {path}: expected format {_FORMAT}, found {found!r}")
    return head


def _steps(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every checkpoint in a folder, complete or not, newest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob("tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def require_finite(state: dict[str, Any], refusal: str) -> None:
    """Raise NonFiniteError if a tensor in `state` is not finite. `refusal` begins the message: what is not done."""
    tensors: dict[str, torch.Tensor] = {}
    _strip(state, "", tensors)
    _require_finite(tensors, refusal)


def _require_finite(tensors: dict[str, torch.Tensor], refusal: str) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not all(bound.isfinite() for bound in tensor.aminmax()):  # far faster than isfinite on every number
            count = int((~tensor.isfinite()).sum())
            raise NonFiniteError(
                f"{refusal}: {name} has {count} of {tensor.numel()} numbers that are not finite; "
                "lower the learning rate"
            )


def _strip(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[place] = value.detach()
        return {"$tensor": place}
    if isinstance(value, dict):
        return {str(key): _strip(inner, f"{place}/{key}", tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strip(inner, f"{place}/{index}", tensors) for index, inner in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"checkpoint state {place}: expected tensors and JSON values, found {type(value).__name__}")


def _fill(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {"$tensor"}:
            return tensors[tree["$tensor"]]
        return {key: _fill(inner, tensors) for key, inner in tree.items()}
    if isinstance(tree, list):
        return [_fill(inner, tensors) for inner in tree]
    return tree
