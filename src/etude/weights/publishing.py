"""Encodes tensors chunk by chunk into the data object of one part of a version."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

from etude.weights.codecs import changed, encode
from etude.weights.errors import WrongBase
from etude.weights.in_memory import HeldTensors, HeldVersion
from etude.weights.manifest import AnyManifest, Chunk, Entry, Part, cut, sums_of
from etude.weights.tensor import Bytes, RawTensor, Tensors, checksum

Result = TypeVar("Result")


@dataclass(frozen=True)
class Base:
    """The version under the one that is published."""

    manifest: AnyManifest
    tensors: Tensors
    stored: bool
    """Whether the new version is stored as a delta on it. If not, only the changed elements are counted."""

    @cached_property
    def _sums(self) -> dict[str, tuple[str, ...]]:
        return {entry.name: entry.sums for entry in self.manifest.tensors}

    @property
    def _sealed(self) -> bool:
        """Whether nobody can have changed the tensors since they were published."""
        return isinstance(self.tensors, HeldTensors) and self.tensors.content == self.manifest.content

    def require_names(self, only: Collection[str] | None = None) -> None:
        """Raise WrongBase unless the tensors' names are exactly those of the version, or of `only` among them."""
        known = self._sums.keys() if only is None else self._sums.keys() & set(only)
        if odd := sorted(known ^ self.tensors.keys()):
            version = self.manifest.version
            raise WrongBase(f"version {version}: {len(odd)} tensors are missing or not its own, {odd[0]!r} first")

    def require(self, name: str) -> RawTensor:
        """Return one of the tensors. Raise WrongBase unless its bytes are those that were published."""
        tensor = self.tensors[name]
        if not self._sealed and sums_of(tensor.data, self.manifest) != self._sums.get(name):
            version = self.manifest.version
            raise WrongBase(f"version {version}: tensor {name} does not have the bytes that were published")
        return tensor

    def under(self, name: str, tensor: RawTensor) -> RawTensor | None:
        """Return the tensor under this one; None if there is none of its name, dtype and shape."""
        found = self.tensors.get(name)
        return self.require(name) if found is not None and found.like(tensor) else None


@dataclass(frozen=True, slots=True)
class _Encoded:
    name: str
    chunk: Chunk
    stored: bytes
    changed: int
    elements: int


def encode_part(
    data: str,
    tensors: Tensors,
    base: Base | None,
    append: Callable[[bytes], object],
    held: HeldVersion | None,
    threads: int,
) -> Part:
    """Encode tensors in the order of their names, each taken from the mapping once, and `append` the stored bytes. At
    most `threads` + 1 chunks are encoded at a time. `held` keeps a copy of each tensor."""
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    chunks: dict[str, list[Chunk]] = {}
    elements = differing = 0

    def pieces() -> Iterator[Callable[[], _Encoded]]:
        for name in sorted(tensors):
            tensor = tensors[name]
            kinds[name], chunks[name] = (tensor.dtype, tensor.shape), []
            if held is not None:
                held.add(tensor)
            under = base.under(name, tensor) if base is not None else None
            olds = cut(under.data) if under is not None else None
            for new in cut(tensor.data):
                old = next(olds) if olds is not None else None
                yield partial(_encoded, name, new, old, tensor.itemsize, base is not None and base.stored)

    for piece in in_order(pieces(), threads):
        chunks[piece.name].append(piece.chunk)
        elements += piece.elements
        differing += piece.changed
        if piece.stored:
            append(piece.stored)
    entries = (
        Entry(name=name, dtype=dtype, shape=shape, chunks=tuple(chunks[name])) for name, (dtype, shape) in kinds.items()
    )
    return Part(data=data, elements=elements, changed=differing, tensors=tuple(entries))


def _encoded(name: str, new: Bytes, old: Bytes | None, itemsize: int, delta: bool) -> _Encoded:
    elements = new.size // itemsize
    codec, stored, differing = encode(new, old if delta else None, itemsize)
    if old is not None and not delta:
        differing = changed(new, old, itemsize)
    return _Encoded(name, Chunk(codec, len(stored), checksum(stored), checksum(new)), stored, differing, elements)


def in_order(tasks: Iterable[Callable[[], Result]], threads: int) -> Iterator[Result]:
    """Run tasks in so many threads; yield their results in order. At most one result more than there are threads is
    made before it is asked for."""
    if threads == 1:
        yield from (task() for task in tasks)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for task in tasks:
            waiting.append(pool.submit(task))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
