"""Writes tensors to a safetensors file one at a time and computes its digest on the way. All bytes go through plain
writes, so a full disk is an ordinary error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from etude.journal.tensor_file import CODES, Entry, write_header
from etude.training.errors import CheckpointError

_PIECE_BYTES = 1 << 20


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a file that `safetensors` reads, synced to disk, and return its digest. Tensors may be on any device."""
    digest = xxhash.xxh3_128()
    with path.open("wb") as file:

        def write(piece: Any) -> None:
            digest.update(piece)
            file.write(piece)

        write(_header(tensors))
        for name in _order(tensors):
            # A tensor on another device, or not contiguous, is copied here: one at a time.
            write(tensors[name].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of the file that `write_tensors` writes."""
    return len(_header(tensors)) + sum(tensor.nbytes for tensor in tensors.values())


def file_digest(path: Path) -> str:
    """Return the digest of a file, which is read in pieces."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names with the widest numbers first, so that each tensor of a mapped file is aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    return write_header({name: _entry(name, tensors[name]) for name in _order(tensors)})


def _entry(name: str, tensor: Tensor) -> Entry:
    code = CODES.get(str(tensor.dtype).removeprefix("torch."))
    if code is None:
        raise CheckpointError(f"checkpoint state {name}: a tensor of {tensor.dtype} cannot be written")
    return Entry(code, tensor.shape, tensor.nbytes)
