"""Holds the newest version in memory, for its publisher and for other processes of the same machine and user.

The publisher keeps the version's bytes in anonymous memory that nothing writes to any more, and says in a small file
beside the store where they are: its process and file descriptor. They live as long as the publisher holds them, and end
with it. A reader maps them without a copy and compares every chunk with its checksum in the version's manifest, so
bytes that are gone, or another process's, are noticed; it then reads the store.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import numpy as np

from etude.journal.files import write_atomically
from etude.weights.manifest import AnyManifest, sums_of
from etude.weights.tensor import RawTensor, bytes_of

_ALIGNED = 64
"""Each tensor begins at a multiple of so many bytes."""


class HeldTensors(dict[str, RawTensor]):
    """A published version's tensors in memory that cannot be written to."""

    def __init__(self, tensors: dict[str, RawTensor], content: str) -> None:
        super().__init__(tensors)
        self.content = content
        """The content digest of the version's manifest."""


class HeldVersion:
    """The publisher's side. A version is copied here tensor by tensor while it is published (`begin`, `add`), and is
    held from `hold` on, instead of the one before. Other processes find it only if the store is a folder."""

    def __init__(self, location: str) -> None:
        self._place = _place(location)
        self._descriptor: int | None = None
        self._coming: int | None = None
        self.base: tuple[int, HeldTensors] | None = None
        """The version that is held, its number and tensors, to publish the next one on."""

    def begin(self) -> None:
        _close(self._coming)
        self._coming = os.memfd_create("version", os.MFD_CLOEXEC)

    def add(self, tensor: RawTensor) -> None:
        """Copy the next tensor, in the order of their names."""
        assert self._coming is not None
        at = os.lseek(self._coming, 0, os.SEEK_CUR)
        os.lseek(self._coming, -at % _ALIGNED, os.SEEK_CUR)
        with open(self._coming, "wb", closefd=False) as file:
            file.write(tensor.data.data)

    def hold(self, manifest: AnyManifest) -> None:
        """Hold the version that was added. `manifest` lists the same tensors."""
        assert self._coming is not None
        fresh, self._coming = self._coming, None
        tensors, size = _laid_out(manifest)
        os.ftruncate(fresh, size)
        mapped = mmap.mmap(fresh, size, prot=mmap.PROT_READ) if size else b""
        whole = np.frombuffer(mapped, np.uint8)
        found = {name: RawTensor(dtype, shape, whole[begin:end]) for name, dtype, shape, begin, end in tensors}
        if self._place is not None:
            said = {"version": manifest.version, "process": os.getpid(), "descriptor": fresh}
            write_atomically(self._place, json.dumps(said).encode())
        _close(self._descriptor)
        self._descriptor, self.base = fresh, (manifest.version, HeldTensors(found, manifest.content))

    def drop(self) -> None:
        for descriptor in (self._descriptor, self._coming):
            _close(descriptor)
        self._descriptor = self._coming = self.base = None


def read_held(location: str, manifest: AnyManifest) -> dict[str, RawTensor] | None:
    """Return a version's tensors, verified, if a process of this machine holds them; else None."""
    place = _place(location)
    laid_out, size = _laid_out(manifest)
    try:
        said = json.loads(place.read_bytes()) if place is not None else {}
        if said.get("version") != manifest.version:
            return None
        with open(f"/proc/{said['process']:d}/fd/{said['descriptor']:d}", "rb") as file:  # noqa: PTH123
            if os.fstat(file.fileno()).st_size != size:
                return None
            # Private, so that torch may write to tensors that share this memory.
            mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = np.frombuffer(mapped, np.uint8)
    tensors = {name: RawTensor(dtype, shape, whole[begin:end]) for name, dtype, shape, begin, end in laid_out}
    intact = all(sums_of(tensors[entry.name].data, manifest) == entry.sums for entry in manifest.tensors)
    return tensors if intact else None


def _laid_out(manifest: AnyManifest) -> tuple[list[tuple[str, str, tuple[int, ...], int, int]], int]:
    """Return each tensor's name, dtype, shape, and place in memory; and the size of all."""
    places, end = [], 0
    for entry in manifest.tensors:  # in the order of their names
        begin = end + -end % _ALIGNED
        end = begin + bytes_of(entry.dtype, entry.shape)
        places.append((entry.name, entry.dtype, entry.shape, begin, end))
    return places, end


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _place(location: str) -> Path | None:
    scheme, separator, path = location.partition("://")
    if separator and scheme != "file":
        return None
    folder = Path(path if separator else location).absolute()
    return folder.with_name(f"{folder.name}-in-memory.json")
