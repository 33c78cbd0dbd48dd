"""A version of the weights in memory that vLLM's workers map: the bytes, and where each published tensor is in them.

A fused module of vLLM must get all its tensors or none (known.py, partial_module). So tensors are sent in groups, and a
group is complete: everything of a layer; or a single tensor outside of the layers.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.model.checkpoints.slots import Slot
from etude.weights import ITEM_SIZES, RawTensor, Tensors
from etude.weights.tensor import checksum

Row = dict[str, Any]
_LAYER = re.compile(r"(.*?\.\d+)\.")


def sums_of(tensors: Tensors) -> dict[str, str]:
    return {name: checksum(tensor.data) for name, tensor in tensors.items()}


class Replica:
    def __init__(self, version: int, tensors: Tensors, sums: Mapping[str, str], slots: Mapping[str, Slot]) -> None:
        """`tensors` and their checksums are by the names of the network's state dict. `slots` has the place of each
        published tensor among them."""
        self.version, self.sums = version, dict(sums)
        self._slots = slots
        self._file = os.memfd_create(f"version {version}", os.MFD_CLOEXEC)
        self._offsets: dict[str, int] = {}
        size = 0
        with open(self._file, "wb", closefd=False) as file:
            for name, tensor in tensors.items():
                self._offsets[name] = size
                size += file.write(tensor.data.data)
        # Private, since torch wants memory that it could write to.
        mapped = mmap.mmap(self._file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._whole = np.frombuffer(mapped, np.uint8)
        self.tensors: dict[str, RawTensor] = {
            name: RawTensor(tensor.dtype, tensor.shape, self._whole[at : at + tensor.data.size])
            for (name, tensor), at in zip(tensors.items(), self._offsets.values(), strict=True)
        }

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        """Give the memory back, once nothing maps it. Its tensors stay valid."""
        os.close(self._file)

    def groups(self, loaded: Mapping[str, str]) -> list[list[Row]]:
        """Return the groups in which a tensor differs from those that are loaded, whose checksums are given."""
        changed = {name for name in self.sums if self.sums[name] != loaded.get(name)}
        groups: dict[str, list[str]] = {}
        for published in self._slots:
            layer = _LAYER.match(published)
            groups.setdefault(layer[1] if layer else published, []).append(published)
        return [
            [self._row(published) for published in group]
            for group in groups.values()
            if any(self._slots[published].parameter in changed for published in group)
        ]

    def _row(self, published: str) -> Row:
        slot = self._slots[published]
        dtype = self.tensors[slot.parameter].dtype
        length = math.prod(slot.shape) * ITEM_SIZES[dtype]
        offset = self._offsets[slot.parameter] + (slot.expert or 0) * length
        whole = slot.expert is None
        total = self.sums[slot.parameter] if whole else checksum(self._whole[offset : offset + length])
        placed = {"offset": offset, "length": length, "sum": total}
        return {"name": published, "dtype": dtype, "shape": list(slot.shape)} | placed
