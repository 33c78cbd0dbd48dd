"""The version store: publishes, reads and verifies versions of a model's weights.

Invariants: a version exists once its manifest does, and then never changes; `read` checks every tensor it returns
against the checksums of the requested version; a writer killed before it writes the manifest leaves all versions as
they were.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import ValidationError

from etude.weights.collection import needed
from etude.weights.coordination import FORGOTTEN_SECONDS, Follower, announce, claim, followers, newest_writer
from etude.weights.download import Download
from etude.weights.errors import CorruptVersion, Fenced, MissingVersion, VersionExists, WeightsError, WrongBase
from etude.weights.format1 import Manifest1, unpack
from etude.weights.in_memory import HeldVersion
from etude.weights.manifest import AnyManifest, Manifest, Part, content_digest, dump, intact_fields, load, sums_of
from etude.weights.objects import Objects
from etude.weights.publishing import Base, encode_part
from etude.weights.reading import Reading
from etude.weights.tensor import RawTensor, Tensors

MANIFEST = re.compile(r"^v(\d{6,})/manifest\.json$")


class WeightStore:
    def __init__(self, location: str | Path, *, anchor_every: int = 25, threads: int = 1) -> None:
        """`threads` encode at a time when a version is published."""
        if anchor_every < 1:
            raise WeightsError(f"anchor_every must be at least 1, found {anchor_every}")
        self._objects = Objects(location)
        self._anchor_every = anchor_every
        self._threads = threads
        self._writer: int | None = None
        self._bases: dict[int, int | None] = {}
        """The base of each version that was looked at, for `collect`."""

    @property
    def location(self) -> str:
        return self._objects.location

    def publish(
        self,
        version: int,
        tensors: Tensors,
        *,
        base: tuple[int, Tensors] | None = None,
        held: HeldVersion | None = None,
    ) -> AnyManifest:
        """Store a version as a delta on `base` (number and tensors of an earlier version). It is stored in full without
        a base, or if the chain of deltas would be as long as `anchor_every`.

        Each tensor is taken from the mapping once, so one that makes them needs memory for one at a time. `held` is
        given a copy of them, and holds the version once it is published.

        Publishing the same content again returns the existing manifest; other content raises VersionExists.
        """
        if held is not None:
            held.begin()
        manifest = self._find(version)
        if manifest is not None:
            self._require_same(manifest, tensors, held)
        else:
            under = self._base(version, base)
            if under is not None:
                under.require_names()
            part = self._write_part(version, tensors, under, (0, 1), secrets.token_hex(8), held)
            manifest = self._finish(version, [part], under)
        if held is not None:
            held.hold(manifest)
        return manifest

    def publish_part(
        self,
        version: int,
        tensors: Tensors,
        *,
        part: tuple[int, int],
        attempt: str,
        base: tuple[int, Tensors] | None = None,
    ) -> None:
        """Store the tensors of one process of several that publish a version together. `part` is this process's number
        and how many there are, `attempt` a word that all of them were given for this try alone, and `base` this
        process's tensors of an earlier version. `finish` makes it a version."""
        if not re.fullmatch(r"[0-9A-Za-z]+", attempt) or not 0 <= part[0] < part[1]:
            raise WeightsError(f"expected a word and a part of several, found {attempt!r} and {part}")
        written = self._write_part(version, tensors, self._base(version, base), part, attempt, None)
        self._objects.put(f"{_folder(version)}/part-{_part(part, attempt)}.json", dump(written))

    def finish(self, version: int, *, parts: int, attempt: str, base: int | None = None) -> AnyManifest:
        """Publish a version whose parts are all stored: what one of the processes does once the others are ready."""
        found: list[Part] = []
        for number in range(parts):
            name = f"part-{_part((number, parts), attempt)}.json"
            raw = self._objects.get(f"{_folder(version)}/{name}")
            if raw is None:
                raise MissingVersion(f"{self.location}: part {number} of {parts} of version {version} is not stored")
            try:
                found.append(Part.model_validate(intact_fields(bytes(raw), f"version {version}: {name}")))
            except ValidationError as error:
                raise CorruptVersion(f"version {version}: {name}: {error.errors()[0]['msg']}") from error
        names = [entry.name for part in found for entry in part.tensors]
        if len(set(names)) < len(names):
            twice = next(name for name in sorted(names) if names.count(name) > 1)
            raise WeightsError(f"version {version}: tensor {twice} is in two parts")
        return self._finish(version, found, self._base(version, None if base is None else (base, {})))

    def claim(self) -> None:
        """Take the store over: from now on every other publisher that did so before is refused with Fenced."""
        self._writer = claim(self._objects)

    def announce(self, follower: str, version: int) -> None:
        """Say that this follower reads or holds a version, so that `collect` leaves it. A follower that is silent for
        an hour is forgotten."""
        announce(self._objects, follower, version)

    def followers(self) -> list[Follower]:
        """Return those that were heard of in the last hour."""
        return [one for one in followers(self._objects) if one.silent_seconds < FORGOTTEN_SECONDS]

    def collect(self, keep: int, pinned: Collection[int] = ()) -> list[int]:
        """Delete old versions and return them. Those that stay are the newest `keep`, what followers announced and what
        is pinned, each with the versions that it stands on."""
        self._require_writer()
        versions = self.versions()
        for version in versions:
            if version not in self._bases:
                self._bases[version] = self.manifest(version).base
        stay = needed(
            {version: self._bases[version] for version in versions},
            keep,
            [one.version for one in self.followers()],
            pinned,
        )
        gone = [version for version in versions if version not in stay]
        for version in reversed(gone):  # so that a kill leaves no version without its base
            self.withdraw(version)
        return gone

    def withdraw(self, version: int) -> None:
        """Delete a version, so that it can be published again after it was found to be damaged."""
        self._require_writer()
        self._bases.pop(version, None)
        self._objects.delete(f"{_folder(version)}/manifest.json")  # without it the version is gone, whatever follows
        self._objects.delete_others(_folder(version), set())

    def versions(self) -> list[int]:
        return sorted(int(match[1]) for path in self._objects.list() if (match := MANIFEST.match(path)))

    def latest(self) -> int | None:
        return max(self.versions(), default=None)

    def manifest(self, version: int) -> AnyManifest:
        if (found := self._find(version)) is None:
            raise MissingVersion(f"{self.location}: version {version} is not published")
        return found

    def read(
        self,
        version: int,
        *,
        have: tuple[int, Tensors] | None = None,
        only: Collection[str] | None = None,
        resume: Path | None = None,
    ) -> dict[str, RawTensor]:
        """Return a version's tensors, verified; with `only`, those of these names. `have` is a version (number and
        tensors) that the caller holds: if the chain of deltas includes it, only later versions are read, and unchanged
        tensors are the caller's objects. `resume` is a folder for what has been fetched, until all is read: a reader
        that was killed goes on from there."""
        steps: list[AnyManifest] = []
        download = Download(self._objects, resume)
        reading = Reading(download)
        at: int | None = version
        while at is not None:
            manifest = self.manifest(at)
            if have is not None and at == have[0]:
                self._begin_with(reading, manifest, have[1], only)
                break
            steps.append(manifest)
            at = manifest.base
        for manifest in reversed(steps):
            try:
                if isinstance(manifest, Manifest1):
                    data = self._objects.get(f"{_folder(manifest.version)}/{manifest.data}")
                    reading.tensors = unpack(manifest, data, reading.tensors)
                else:
                    reading.apply(manifest, only)
            except CorruptVersion as error:
                self.manifest(manifest.version)  # a version that was deleted in the meantime is missing, not damaged
                raise CorruptVersion(f"{self.location}: version {manifest.version}: {error}") from error
        download.done()
        return {name: tensor for name, tensor in reading.tensors.items() if only is None or name in only}

    def _find(self, version: int) -> AnyManifest | None:
        if version < 0:
            raise WeightsError(f"versions count from 0, found {version}")
        raw = self._objects.get(f"{_folder(version)}/manifest.json")
        return None if raw is None else load(bytes(raw), version)

    def _base(self, version: int, base: tuple[int, Tensors] | None) -> Base | None:
        if base is None:
            return None
        if base[0] >= version:
            raise WrongBase(f"version {version} cannot stand on version {base[0]}: a base comes earlier")
        manifest = self.manifest(base[0])
        return Base(manifest, base[1], isinstance(manifest, Manifest) and manifest.depth + 1 < self._anchor_every)

    def _require_writer(self) -> None:
        if self._writer is not None and (newest := newest_writer(self._objects)) > self._writer:
            raise Fenced(
                f"{self.location}: publisher {newest} took this store over from {self._writer}; if two runs share it "
                "by mistake, give each its own weights.store"
            )

    def _write_part(
        self,
        version: int,
        tensors: Tensors,
        base: Base | None,
        part: tuple[int, int],
        attempt: str,
        held: HeldVersion | None,
    ) -> Part:
        # Two writers of one version never overwrite each other's data.
        name = f"data-{_part(part, attempt)}.bin"
        with self._objects.writing(f"{_folder(version)}/{name}") as append:
            return encode_part(name, tensors, base, append, held, self._threads)

    def _finish(self, version: int, parts: Sequence[Part], base: Base | None) -> AnyManifest:
        entries = [entry for part in parts for entry in part.tensors]
        under = base.manifest if base is not None and base.stored else None
        manifest = Manifest(
            version=version,
            base=under.version if under is not None else None,
            depth=under.depth + 1 if under is not None else 0,
            content=content_digest((e.name, e.dtype, e.shape, e.sums) for e in entries),
            parts=tuple(parts),
        )
        folder = _folder(version)
        self._require_writer()
        if not self._objects.create(f"{folder}/manifest.json", dump(manifest)):
            existing = self.manifest(version)
            if existing.content != manifest.content:
                raise _exists(version)
            return existing
        self._objects.delete_others(folder, {f"{folder}/manifest.json", *(f"{folder}/{part.data}" for part in parts)})
        return manifest

    def _require_same(self, existing: AnyManifest, tensors: Tensors, held: HeldVersion | None) -> None:
        """Raise VersionExists unless these are the version's tensors."""
        rows = []
        for name in sorted(tensors):
            tensor = tensors[name]
            if held is not None:
                held.add(tensor)
            rows.append((name, tensor.dtype, tensor.shape, sums_of(tensor.data, existing)))
        if content_digest(rows) != existing.content:
            raise _exists(existing.version)

    def _begin_with(
        self, reading: Reading, manifest: AnyManifest, tensors: Tensors, only: Collection[str] | None
    ) -> None:
        """Begin with the caller's tensors. Raise WrongBase unless they are exactly those of this version."""
        only = None if isinstance(manifest, Manifest1) else only
        mine = {name: tensor for name, tensor in tensors.items() if only is None or name in only}
        base = Base(manifest, mine, stored=True)
        base.require_names(only)
        for entry in manifest.tensors:
            if entry.name in mine:
                tensor = base.require(entry.name)
                if tensor.dtype != entry.dtype or tensor.shape != entry.shape:
                    raise WrongBase(f"version {manifest.version}: tensor {entry.name} has another dtype or shape")
                reading.tensors[entry.name], reading.sums[entry.name] = tensor, entry.sums


def _exists(version: int) -> VersionExists:
    return VersionExists(f"version {version} is published with other content; a version never changes")


def _part(part: tuple[int, int], attempt: str) -> str:
    return f"{part[0]:03d}-of-{part[1]:03d}-{attempt}"


def _folder(version: int) -> str:
    return f"v{version:06d}"
