"""Hands the newest version to other processes of the same machine and user through memory.

The publisher keeps the version's bytes in anonymous memory and says in a small file beside the store where they are:
its process and file descriptor. They live as long as the publisher holds them, and end with it. A reader maps them
without a copy and compares every tensor with the checksum in the version's manifest, so bytes that are gone, or another
process's, are noticed; it then reads the store.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import numpy as np

from etude.journal.files import write_atomically
from etude.weights.manifest import Manifest
from etude.weights.tensor import RawTensor, Tensors, bytes_of, checksum


class HeldVersion:
    """The publisher's side: the version that it holds, if the store is a folder."""

    def __init__(self, location: str) -> None:
        self._place = _place(location)
        self._descriptor: int | None = None

    def hold(self, manifest: Manifest, tensors: Tensors) -> None:
        """Hold this version instead of the one before."""
        if self._place is None:
            return
        fresh = os.memfd_create(f"version {manifest.version}", os.MFD_CLOEXEC)
        with open(fresh, "wb", closefd=False) as file:
            for entry in manifest.tensors:
                file.write(tensors[entry.name].data.data)
        said = {"version": manifest.version, "process": os.getpid(), "descriptor": fresh}
        write_atomically(self._place, json.dumps(said).encode())
        self.drop()
        self._descriptor = fresh

    def drop(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_held(location: str, manifest: Manifest) -> dict[str, RawTensor] | None:
    """Return a version's tensors, verified, if a process of this machine holds them; else None."""
    place = _place(location)
    sizes = [bytes_of(entry.dtype, entry.shape) for entry in manifest.tensors]
    try:
        said = json.loads(place.read_bytes()) if place is not None else {}
        if said.get("version") != manifest.version:
            return None
        with open(f"/proc/{said['process']:d}/fd/{said['descriptor']:d}", "rb") as file:  # noqa: PTH123
            if os.fstat(file.fileno()).st_size != sum(sizes):
                return None
            # Private, so that torch may write to tensors that share this memory.
            mapped = mmap.mmap(file.fileno(), sum(sizes), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole, offset, tensors = np.frombuffer(mapped, np.uint8), 0, {}
    for entry, size in zip(manifest.tensors, sizes, strict=True):
        data = whole[offset : offset + size]
        if checksum(data) != entry.checksum:
            return None
        tensors[entry.name] = RawTensor(entry.dtype, entry.shape, data)
        offset += size
    return tensors


def _place(location: str) -> Path | None:
    scheme, separator, path = location.partition("://")
    if separator and scheme != "file":
        return None
    folder = Path(path if separator else location).absolute()
    return folder.with_name(f"{folder.name}-in-memory.json")
