"""A version of the weights in memory that vLLM's workers map: the bytes, and where each published tensor is in them.

A fused module of vLLM must get all its tensors or none (known.py, partial_module). So tensors are sent in groups, and a
group is complete: everything of a layer; or a single tensor outside of the layers.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.model.checkpoints.slots import Slot
from etude.weights import CHUNK_BYTES, RawTensor, Tensors
from etude.weights.tensor import checksum

Row = dict[str, Any]
Sums = tuple[str, ...]
"""Checksums of a tensor's bytes, of each CHUNK_BYTES one."""
_LAYER = re.compile(r"(.*?\.\d+)\.")


def sums_of(tensors: Tensors) -> dict[str, Sums]:
    return {
        name: tuple(checksum(tensor.data[at : at + CHUNK_BYTES]) for at in range(0, tensor.data.size, CHUNK_BYTES))
        for name, tensor in tensors.items()
    }


class Replica:
    def __init__(self, version: int, tensors: Tensors, sums: Mapping[str, Sums], slots: Mapping[str, Slot]) -> None:
        """`tensors` and their checksums are by their published names. `slots` has the place of each one that vLLM has
        in the trainer's network, in the order of that network's tensors."""
        self.version, self.sums = version, dict(sums)
        self._slots = slots
        self._file = os.memfd_create(f"version {version}", os.MFD_CLOEXEC)
        self._rows: dict[str, Row] = {}
        stacks: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        size = 0
        with open(self._file, "wb", closefd=False) as file:
            for name, slot in slots.items():
                tensor = tensors[name]
                length = file.write(tensor.data.data)
                placed = {"offset": size, "length": length, "sums": list(sums[name])}
                self._rows[name] = {"name": name, "dtype": tensor.dtype, "shape": list(tensor.shape)} | placed
                shape = tensor.shape if slot.expert is None else (slot.expert + 1, *tensor.shape)
                begin = size if slot.expert in (None, 0) else stacks[slot.parameter][2]  # experts follow one another
                size += length
                stacks[slot.parameter] = tensor.dtype, shape, begin, size
        # Private, since torch wants memory that it could write to.
        mapped = mmap.mmap(self._file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        whole = np.frombuffer(mapped, np.uint8)
        self.tensors = {
            parameter: RawTensor(dtype, shape, whole[begin:end])
            for parameter, (dtype, shape, begin, end) in stacks.items()
        }
        """The same bytes by the names of the trainer's network, with the experts of a layer in one tensor."""

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        """Give the memory back, once nothing maps it. Its tensors stay valid."""
        os.close(self._file)

    def groups(self, loaded: Mapping[str, Sums]) -> list[list[Row]]:
        """Return the groups in which a tensor differs from those that are loaded, whose checksums are given."""
        groups: dict[str, list[str]] = {}
        for published in self._slots:
            layer = _LAYER.match(published)
            groups.setdefault(layer[1] if layer else published, []).append(published)
        return [
            [self._rows[name] for name in group]
            for group in groups.values()
            if any(self.sums[name] != loaded.get(name) for name in group)
        ]
