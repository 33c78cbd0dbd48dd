"""Checkpoints of a training stage: one folder per step, which is either complete or absent.

A checkpoint is written to a temporary folder (tmp-...), synced, then renamed to step-00000123; a kill at any moment
leaves earlier checkpoints untouched. On reading, the data is checked against the stored digest, so a torn or damaged
checkpoint is skipped, never used. A checkpoint with non-finite numbers is never written, because every later resume
would start from it.

Tensors go into one safetensors file, everything else into JSON. There is no pickle, so a checkpoint cannot run code,
and all bytes go through plain writes, so a full disk is an ordinary error. Sharded checkpoints can be added behind the
same functions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash

from etude.journal.files import sync, write_synced
from etude.training.errors import CheckpointError, NonFiniteError
from etude.training.files import disk_error

_NAME = re.compile(r"step-(\d{8})")
_TENSORS, _STATE = "tensors.safetensors", "state.json"
_FORMAT = "etude-checkpoint/1"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> Path:
    """Write a checkpoint of `state` (nested dicts and lists of tensors and JSON values), and delete all but the newest
    `keep` checkpoints of the folder. Raises NonFiniteError if a tensor is not finite."""
    tensors: dict[str, torch.Tensor] = {}
    tree = _strip(state, "", tensors)
    _require_finite(tensors, folder, step)
    packed = safetensors.torch.save(tensors)
    head = {"format": _FORMAT, "step": step, "digest": xxhash.xxh3_128_hexdigest(packed), "state": tree}
    text = json.dumps(head).encode()
    final, aside = folder / f"step-{step:08d}", folder / f"tmp-{step:08d}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        aside.mkdir()
        write_synced(aside / _TENSORS, packed)
        write_synced(aside / _STATE, text)
        sync(aside)
        if final.exists():  # the same step was written before but found damaged and skipped
            shutil.rmtree(final)
        aside.rename(final)
        sync(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise disk_error(final, len(packed) + len(text), error) from error
    for _, old in _steps(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def latest_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """Return (step, path) of the newest complete checkpoint in a folder, or None. Damaged checkpoints are skipped."""
    for step, path in _steps(folder):
        try:
            _read(path)
        except CheckpointError:
            continue
        return step, path
    return None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state that `save_checkpoint` wrote to this path, with tensors on the CPU."""
    head, packed = _read(path)
    restored = _fill(head["state"], safetensors.torch.load(packed))
    if not isinstance(restored, dict):
        raise CheckpointError(f"checkpoint {path}: expected a dictionary, found {type(restored).__name__}")
    return restored


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        head = json.loads((path / _STATE).read_bytes())
        packed = (path / _TENSORS).read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {_STATE} is not JSON") from error
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        found = head.get("format") if isinstance(head, dict) else type(head).__name__
        raise CheckpointError(f"checkpoint {path}: expected format {_FORMAT}, found {found!r}")
    if xxhash.xxh3_128_hexdigest(packed) != head["digest"]:
        raise CheckpointError(f"checkpoint {path} is damaged: {_TENSORS} does not match its digest")
    return head, packed


def _steps(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of every checkpoint in a folder, complete or not, newest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(found, reverse=True)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob("tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def _require_finite(tensors: dict[str, torch.Tensor], folder: Path, step: int) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not all(bound.isfinite() for bound in tensor.aminmax()):  # far faster than isfinite on every number
            count = int((~tensor.isfinite()).sum())
            raise NonFiniteError(
                f"no checkpoint of step {step} is written to {folder}: {name} has {count} of {tensor.numel()} numbers "
                "that are not finite; lower the learning rate"
            )


def _strip(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors[place] = value.detach().cpu().contiguous().clone()
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
