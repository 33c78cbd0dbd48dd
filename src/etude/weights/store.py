"""The version store: publishes, reads and verifies versions of a model's weights.

Invariants: a version exists once its manifest does, and then never changes; `read` checks every tensor it returns
against the checksums of the requested version; a writer killed before it writes the manifest leaves all versions as
they were.

Simplification: a version's data is one object that is read whole.
"""

from __future__ import annotations

import re
from pathlib import Path

from etude.weights.codec import changed, decode, encode
from etude.weights.errors import CorruptVersion, MissingVersion, VersionExists, WeightsError, WrongBase
from etude.weights.manifest import Entry, Manifest, content_digest, dump, load
from etude.weights.objects import Objects
from etude.weights.tensor import ITEM_SIZES, RawTensor, Tensors, checksum

MANIFEST = re.compile(r"^v(\d{6,})/manifest\.json$")


class WeightStore:
    def __init__(self, location: str | Path, *, anchor_every: int = 25) -> None:
        if anchor_every < 1:
            raise WeightsError(f"anchor_every must be at least 1, found {anchor_every}")
        self._objects = Objects(location)
        self._anchor_every = anchor_every

    @property
    def location(self) -> str:
        return self._objects.location

    def publish(self, version: int, tensors: Tensors, *, base: tuple[int, Tensors] | None = None) -> Manifest:
        """Store a version as a delta on `base` (number and tensors of an earlier version). It is stored in full without
        a base, or if the chain of deltas would be as long as `anchor_every`.

        Publishing the same content again returns the existing manifest; other content raises VersionExists.
        """
        sums = {name: checksum(tensor.data) for name, tensor in tensors.items()}
        content = content_digest([(name, t.dtype, t.shape, sums[name]) for name, t in tensors.items()])
        if (existing := self._find(version)) is not None:
            return _same_or_refused(existing, content)
        depth = 0
        if base is not None:
            if base[0] >= version:
                raise WrongBase(f"version {version} cannot stand on version {base[0]}: a base comes earlier")
            under = self.manifest(base[0])
            _check(under, base[1], WrongBase)
            depth = under.depth + 1 if under.depth + 1 < self._anchor_every else 0
        manifest, data = _pack(version, tensors, sums, content, base, depth)
        folder = _folder(version)
        kept = {f"{folder}/{manifest.data}", f"{folder}/manifest.json"}
        self._objects.put(f"{folder}/{manifest.data}", data)
        if not self._objects.create(f"{folder}/manifest.json", dump(manifest)):
            return _same_or_refused(self.manifest(version), content)
        self._objects.delete_others(folder, kept)
        return manifest

    def withdraw(self, version: int) -> None:
        """Delete a version, so that it can be published again after it was found to be damaged."""
        self._objects.delete_others(_folder(version), set())

    def versions(self) -> list[int]:
        return sorted(int(match[1]) for path in self._objects.list() if (match := MANIFEST.match(path)))

    def latest(self) -> int | None:
        return max(self.versions(), default=None)

    def manifest(self, version: int) -> Manifest:
        if (found := self._find(version)) is None:
            raise MissingVersion(f"{self.location}: version {version} is not published")
        return found

    def read(self, version: int, *, have: tuple[int, Tensors] | None = None) -> dict[str, RawTensor]:
        """Return a version's tensors, verified. `have` is a version (number and tensors) that the caller holds: if the
        chain of deltas includes it, only later versions are read, and unchanged tensors are the caller's objects."""
        steps: list[Manifest] = []
        tensors: dict[str, RawTensor] = {}
        at: int | None = version
        while at is not None:
            manifest = self.manifest(at)
            if have is not None and at == have[0]:
                _check(manifest, have[1], WrongBase)
                tensors = dict(have[1])
                break
            steps.append(manifest)
            at = manifest.base
        for manifest in reversed(steps):
            tensors = self._unpack(manifest, tensors)
        return tensors

    def _find(self, version: int) -> Manifest | None:
        if version < 0:
            raise WeightsError(f"versions count from 0, found {version}")
        raw = self._objects.get(f"{_folder(version)}/manifest.json")
        return None if raw is None else load(bytes(raw), version)

    def _unpack(self, manifest: Manifest, base: Tensors) -> dict[str, RawTensor]:
        where = f"{self.location}: version {manifest.version}"
        data = self._objects.get(f"{_folder(manifest.version)}/{manifest.data}")
        if data is None:
            raise CorruptVersion(f"{where}: its data object {manifest.data} is gone")
        if checksum(data) != manifest.data_checksum:
            raise CorruptVersion(f"{where}: {manifest.data} is not the data that was published")
        tensors: dict[str, RawTensor] = {}
        for entry in manifest.tensors:
            stored = data[entry.offset : entry.offset + entry.length]
            try:
                tensors[entry.name] = decode(entry.codec, stored, entry.dtype, entry.shape, base.get(entry.name))
            except CorruptVersion as error:
                raise CorruptVersion(f"{where}: tensor {entry.name}: {error}") from error
        _check(manifest, tensors, CorruptVersion)
        return tensors


def _pack(
    version: int,
    tensors: Tensors,
    sums: dict[str, str],
    content: str,
    base: tuple[int, Tensors] | None,
    depth: int,
) -> tuple[Manifest, bytearray]:
    under = base[1] if base is not None else {}
    entries: list[Entry] = []
    data = bytearray()  # grown in place, since a list of all pieces would exist beside their sum
    differing = elements = 0
    for name, tensor in sorted(tensors.items()):
        codec, stored = encode(tensor, under.get(name) if depth else None)
        differing += changed(tensor, under.get(name))
        elements += tensor.data.size // ITEM_SIZES[tensor.dtype]
        entries.append(
            Entry(
                name=name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                codec=codec,
                offset=len(data),
                length=len(stored),
                checksum=sums[name],
            )
        )
        data += stored
    total = checksum(memoryview(data))
    manifest = Manifest(
        version=version,
        kind="delta" if depth else "full",
        base=base[0] if base is not None and depth else None,
        depth=depth,
        content=content,
        # Named by its own bytes: two writers of one version never overwrite each other's data.
        data=f"data-{total}.bin",
        data_checksum=total,
        bytes_stored=len(data),
        bytes_full=sum(tensor.data.size for tensor in tensors.values()),
        share_changed=differing / elements if elements else 0.0,
        tensors=tuple(entries),
    )
    return manifest, data


def _check(manifest: Manifest, tensors: Tensors, wrong: type[WeightsError]) -> None:
    """Raise `wrong` unless `tensors` are exactly the tensors that the version's manifest lists, with the bytes that
    were published."""
    version = manifest.version
    names = {entry.name for entry in manifest.tensors}
    if odd := sorted(names ^ tensors.keys()):
        raise wrong(f"version {version}: {len(odd)} tensors are missing or not its own, {odd[0]!r} first")
    for entry in manifest.tensors:
        tensor = tensors[entry.name]
        if tensor.dtype != entry.dtype or tensor.shape != entry.shape or checksum(tensor.data) != entry.checksum:
            raise wrong(f"version {version}: tensor {entry.name} does not have the bytes that were published")


def _same_or_refused(existing: Manifest, content: str) -> Manifest:
    if existing.content != content:
        raise VersionExists(f"version {existing.version} is published with other content; a version never changes")
    return existing


def _folder(version: int) -> str:
    return f"v{version:06d}"
