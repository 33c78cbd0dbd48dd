"""Read and write single safetensors files: 8 bytes with the header's length, a JSON header, and the tensors' bytes.

Invariant: a header is accepted only if its tensors fill the file exactly, without gaps, so a file that is cut off is
noticed before any data is read. Tensors are read straight into existing memory and written one at a time, which the
safetensors package cannot do: neither takes more memory than one tensor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.journal.tensor_file import CODES, Entry, write_header
from etude.model.errors import UnsupportedCheckpoint

_DTYPES: dict[str, torch.dtype] = {code: getattr(torch, name) for name, code in CODES.items()}
_LARGEST_JSON = 100_000_000
_MOST_DIMENSIONS, _LONGEST_NAME = 8, 500


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, as the file's header describes it."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """Offset of its first byte in the file."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Return a file's tensors by name. Raises UnsupportedCheckpoint if it is damaged or of another format."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(size - 8, _LARGEST_JSON):
            raise UnsupportedCheckpoint(f"{file} is damaged or of another format: it has no safetensors header")
        entries = read_json(stream.read(length), file)
    entries.pop("__metadata__", None)
    tensors = {name: _stored(file, name, entry, 8 + length) for name, entry in entries.items()}
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].bytes)):
        if tensor.begin != end:
            raise UnsupportedCheckpoint(f"{file} is damaged: {name} does not begin where the tensor before it ends")
        end += tensor.bytes
    if end != size:
        raise UnsupportedCheckpoint(f"{file} is damaged: it has {size} bytes, but its header describes {end}")
    return tensors


def read_json(text: bytes, file: Path) -> dict[str, Any]:
    """Parse a JSON object, no key of which occurs twice. `file` is named in the error."""
    try:
        data = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UnsupportedCheckpoint(f"{file} is damaged: {reason}") from error
    if not isinstance(data, dict):
        raise UnsupportedCheckpoint(f"{file} is damaged: it holds no JSON object")
    return data


def read_json_file(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _LARGEST_JSON:
        raise UnsupportedCheckpoint(f"{file} is too large: {file.stat().st_size} bytes")
    return read_json(file.read_bytes(), file)


def read_into(stored: StoredTensor, out: Tensor) -> None:
    """Read a tensor's bytes into `out`, a contiguous tensor on the CPU of the stored dtype and size."""
    rest = memoryview(_bytes_of(out))
    with stored.file.open("rb", buffering=0) as stream:
        stream.seek(stored.begin)
        while rest:
            count = stream.readinto(rest)
            if not count:
                raise UnsupportedCheckpoint(f"{stored.file} has become shorter while it was read")
            rest = rest[count:]


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write and fsync a file. Tensors of wide dtypes come first, so that each begins at a multiple of its item size."""
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
    entries = {
        name: Entry(CODES[str(tensor.dtype).removeprefix("torch.")], tensor.shape, tensor.nbytes)
        for name, tensor in ordered.items()
    }
    with file.open("wb") as stream:
        stream.write(write_header(entries, {"format": "pt"}))
        for tensor in ordered.values():
            stream.write(_bytes_of(tensor.cpu().contiguous()))
        stream.flush()
        os.fsync(stream.fileno())


def _bytes_of(tensor: Tensor) -> Any:
    """Return the memory of a contiguous tensor on the CPU as an array of bytes."""
    return tensor.detach().flatten().view(torch.uint8).numpy()


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _stored(file: Path, name: str, entry: Any, data: int) -> StoredTensor:
    # A name that could break a line of output is refused, so that any message may quote names.
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        raise UnsupportedCheckpoint(f"{file} is damaged: a tensor's name is not printable or too long")
    match entry:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [begin, end]} if all(
            type(number) is int and number >= 0 for number in (*shape, begin, end)
        ):
            pass
        case _:
            raise UnsupportedCheckpoint(f"{file} is damaged: the header's entry for {name} is malformed")
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise UnsupportedCheckpoint(f"{file}: {name} has the dtype {code[:40]!r}, which is not implemented")
    tensor = StoredTensor(file, dtype, tuple(shape), data + begin)
    if len(shape) > _MOST_DIMENSIONS or math.prod(size or 1 for size in shape) >= 1 << 48:
        raise UnsupportedCheckpoint(f"{file} is damaged: the shape of {name} is not that of a tensor")
    if tensor.bytes != end - begin:
        raise UnsupportedCheckpoint(
            f"{file} is damaged: {name} has {end - begin} bytes, but its shape {list(shape)} takes {tensor.bytes}"
        )
    return tensor
