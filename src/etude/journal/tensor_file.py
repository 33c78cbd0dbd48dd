"""The header of safetensors files: 8 bytes with its length, then JSON with each tensor's dtype, shape and place.

Written here, because the safetensors package first makes bytes of all tensors, which doubles the memory. The rooms that
write such files write one tensor after the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The format's names of dtypes, by torch's."""


class Entry(NamedTuple):
    code: str
    shape: Sequence[int]
    size: int
    """Bytes of the tensor."""


def write_header(entries: Mapping[str, Entry], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the header of a file that holds these tensors one after the other. If those with the widest numbers come
    first, each begins at a multiple of its number's size."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, entry in entries.items():
        begin, end = end, end + entry.size
        header[name] = {"dtype": entry.code, "shape": list(entry.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
