"""The image store: images, their layers named by content, and the folders of living owners.

    images/<id>.json       an Image; its modification time is its last use
    layers/<ids>/<name>/   a folder tree, never changed
    base/<digest>/         generated folder trees, the lowest layers of boxes
    owners/<name>/         lock, leases and scratch files of a process that has the store open

Invariant: every name in images/ or layers/ stands for something complete. A layer that a living owner leases is not
removed. Functions that access the trees of layers are marked `in_store_process`, but a removal is first tried in the
owner's process. All other files belong to the user who runs that process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from etude.sandbox.contract import ImageError, RequestRefused, SandboxLost
from etude.sandbox.images.flatten import BackgroundJobs, merge_layers
from etude.sandbox.images.full_disk import full_disk_as_error
from etude.sandbox.images.ids import IdRange
from etude.sandbox.images.image import HOST, Image
from etude.sandbox.images.layers import FIXED_TIME
from etude.sandbox.images.owners import disk_bytes, locked, remove_dead_owners, remove_tree
from etude.sandbox.images.spreading import spread_trees
from etude.sandbox.images.store_process import StoreProcess, in_store_process
from etude.sandbox.inside.users import USERS

MAX_LAYERS = 40
"""Maximum number of layers of an image. A longer chain is merged before the image is recorded."""
MERGE_AT = 32
"""A chain of more layers is merged in the background, since each layer makes path lookups a little slower."""
_SYSTEM = {"", "bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr"}


def check_workdir(workdir: str, base: str = HOST) -> PurePosixPath:
    """Return the workdir as a path, or raise RequestRefused if boxes on this base cannot have it."""
    path = PurePosixPath(workdir)
    if not path.is_absolute() or ".." in path.parts or "\0" in workdir:
        raise RequestRefused(f"workdir {workdir!r}: expected an absolute path without '..', such as /work")
    if base == HOST and (*path.parts, "")[1] in _SYSTEM:
        raise RequestRefused(f"workdir {workdir!r}: expected a path outside the system's folders, such as /work")
    return path


@dataclass(slots=True)
class Lease:
    """Keeps layers from being removed until it is released or its owner's process ends."""

    layers: tuple[str, ...]
    """Names of the leased layers: topmost first for a lease on an image, else in the caller's order."""
    paths: tuple[str, ...]
    """Paths of the leased layers relative to the store, in the order of `layers`."""
    _record: Path

    def release(self) -> None:
        """End the lease. Safe to call twice."""
        self._record.unlink(missing_ok=True)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ImageStore:
    """An image store as opened by one process, its owner. Several processes may open a store in the same folder."""

    process: StoreProcess | None
    """The store process, which accesses trees of subordinate ids. None without such ids, and in that process itself."""

    def __init__(self, root: Path, ids: IdRange | None) -> None:
        """Open the store. Files in layers belong to ids of the range `ids`, or if None, to this process's user."""
        self._set_paths(root, ids, f"{os.getpid()}-{secrets.token_hex(4)}")
        self.process = StoreProcess(root, self.owner, ids) if ids and ids.subordinate else None
        try:
            with full_disk_as_error(root):
                for folder in (root / "images", self.layers, root / "base", root / "owners"):
                    folder.mkdir(parents=True, exist_ok=True)
            root.chmod(0o700)
        except OSError as error:
            raise ImageError(f"{root} cannot be a store of images: {error.strerror}: {error.filename}") from error
        # Another process's cleanup must not run between making an owner's folder and locking it.
        with full_disk_as_error(root), locked(root / "lock"):
            (self.scratch / "leases").mkdir(parents=True)
            spread_trees(self.scratch)
            self._lock = os.open(self.scratch / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.remove_dead_owners()

    @classmethod
    def for_store_process(cls, root: Path, ids: IdRange | None, owner: str) -> ImageStore:
        """Return an ImageStore for the store process, valid only while its `owner` keeps the store open."""
        store = cls.__new__(cls)
        store._set_paths(root, ids, owner)
        return store

    def _set_paths(self, root: Path, ids: IdRange | None, owner: str) -> None:
        """Set the attributes that an ImageStore needs both in its owner's process and in the store process."""
        self.root, self.ids, self.owner = root, ids, owner
        self.layers = root / "layers" / ("own" if ids is None else ids.name)
        """Folder of the layers whose files belong to `ids`. Each range of user ids has its own folder; a layer has the
        same name in all of them."""
        self.scratch = root / "owners" / owner
        self.process = None
        self._background = BackgroundJobs()

    def close(self) -> None:
        self._background.stop()
        if self.process is not None:
            # A running merge would delay its end. If needed, `_remove` starts another one.
            self.process.close()
        self._background.finish()
        try:
            self._remove(self.scratch)
        finally:
            if self.process is not None:
                self.process.close()
            os.close(self._lock)

    def finish(self) -> None:
        self._background.finish()

    def remove_dead_owners(self) -> None:
        remove_dead_owners(self.root / "owners", self._remove)

    def _remove(self, path: Path) -> None:
        """Remove a tree. This process tries it first: its rights are enough for trees that no box has written to. If
        they are not enough, the store process, which is root over the boxes' ids, removes the tree."""
        try:
            remove_tree(path)
        except PermissionError:
            if self.process is None:
                raise
            self._remove_in_store_process(path)

    @in_store_process
    def _remove_in_store_process(self, path: Path) -> None:
        remove_tree(path)

    @contextlib.contextmanager
    def fresh(self, kind: str) -> Iterator[Path]:
        """Yield a new path in the scratch folder. What lies there at the end of the block is removed."""
        path = self.scratch / f"{kind}-{secrets.token_hex(4)}"
        try:
            with full_disk_as_error(self.root):
                yield path
        finally:
            remove_tree(path)

    def write(self, path: Path, text: str) -> None:
        """Write a small file atomically."""
        with self.fresh("note") as fresh:
            fresh.write_text(text)
            fresh.rename(path)

    # -- layers

    def has_layer(self, name: str) -> bool:
        return (self.layers / name).is_dir()

    @in_store_process
    def adopt(self, fresh: Path, layer: str) -> None:
        """Move a finished tree into the store. If it has the layer already, the content is equal: remove the tree."""
        try:
            fresh.rename(self.layers / layer)
        except OSError:
            remove_tree(fresh)
            if not self.has_layer(layer):
                raise

    def add(self, files: dict[str, bytes], base: str, workdir: str) -> str:
        """Make an image from the image `base` and `files` (path below the workdir -> content), and return its id. If
        boxes have several users, the files belong to the user `agent`."""
        below = self.image(base)
        inside = check_workdir(workdir, below.base)
        for name in files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
                raise RequestRefused(f"file {name!r}: expected a path relative to the workdir, without '..'")
        digest = hashlib.blake2b(digest_size=16)
        for part in (str(inside), *(text for item in sorted(files.items()) for text in item)):
            data = part if isinstance(part, bytes) else part.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
        layer = digest.hexdigest()
        if not self.has_layer(layer):
            self._make_layer(layer, inside, files)
        return self.record(replace(below, layers=(layer, *below.layers), config=replace(below.config, workdir=workdir)))

    @in_store_process
    def _make_layer(self, layer: str, workdir: PurePosixPath, files: dict[str, bytes]) -> None:
        with self.fresh("add") as fresh:
            self._write_layer(fresh, workdir, files)
            self.adopt(fresh, layer)

    def _write_layer(self, fresh: Path, workdir: PurePosixPath, files: dict[str, bytes]) -> None:
        top = fresh.joinpath(*workdir.parts[1:])
        top.mkdir(parents=True)
        for name, content in files.items():
            path = top / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise RequestRefused(f"file {name!r} is also a folder of another file's path") from error
            if content.startswith(b"#!"):
                path.chmod(0o755)
        for path in [*sorted(fresh.rglob("*"), reverse=True), fresh]:
            if path.is_dir():
                path.chmod(0o755)
            if self.ids is not None:
                owner = self.ids.first + (USERS["agent"] if path.is_relative_to(top) else 0)
                os.chown(path, owner, owner)
            os.utime(path, (FIXED_TIME, FIXED_TIME))

    @in_store_process
    def measure(self, trees: Sequence[Path]) -> int:
        return sum(disk_bytes(tree) for tree in trees)

    # -- images

    def record(self, image: Image, origin: str = "") -> str:
        """Save an image and return its id. The same layers and settings always have the same id. `origin` describes
        where the image came from."""
        # Keep only the topmost occurrence of a layer: the lower ones are invisible, and overlayfs refuses them.
        image = replace(image, layers=tuple(dict.fromkeys(image.layers)))
        height = len(self.stack(image))
        if height > MAX_LAYERS:
            self.merge(image)
        elif height > MERGE_AT:
            self._background.do(lambda: self._merge_quietly(image))
        path = self.root / "images" / f"{image.id}.json"
        for kept, text in ((path.with_suffix(".origin"), origin), (path, image.to_json())):
            if text and not kept.exists():
                self.write(kept, text)
        return image.id

    def image(self, name: str) -> Image:
        """Load an image. Raises RequestRefused for an unknown name, and ImageError if the image is damaged."""
        if name == HOST:
            return Image(HOST, ())
        path = self.root / "images" / f"{name}.json"
        if not name.isalnum() or not path.is_file():
            raise RequestRefused(
                f"no image {name!r} in {self.root}; add_image or snapshot makes one, 'host' is always there"
            )
        try:
            image = Image.from_json(path.read_text())
        except (ValueError, KeyError, TypeError) as error:
            raise ImageError(
                f"image {name}: {path} is damaged ({error}); remove it and make the image again"
            ) from error
        missing = [layer for layer in self.stack(image) if not self.has_layer(layer)]
        if missing:
            raise ImageError(f"image {name} lacks its layers {', '.join(missing)} in {self.root}; add it again")
        return image

    def images(self) -> Iterator[tuple[str, float]]:
        """Yield each image's id and the time of its last use, least recent first."""
        found = []
        for path in (self.root / "images").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stem, path.stat().st_mtime))
        yield from sorted(found, key=lambda item: item[1])

    def origin(self, name: str) -> str:
        """Return the description of where the image came from, or "" if none is recorded."""
        path = self.root / "images" / f"{name}.origin"
        return path.read_text() if path.is_file() else ""

    def forget(self, name: str) -> None:
        """Remove the image's record. Its layers stay until `collect` finds that nothing needs them."""
        for suffix in (".json", ".origin"):
            (self.root / "images" / f"{name}{suffix}").unlink(missing_ok=True)

    def stack(self, image: Image) -> tuple[str, ...]:
        """Return the layers to mount for an image, topmost first. If some of its lowest layers have been merged, the
        merged layer replaces them; of several merged layers, the one that replaces most is used."""
        for index in range(len(image.layers) - 1):
            merged = merged_name(image.layers[index:])
            if self.has_layer(merged):
                return (*image.layers[:index], merged)
        return image.layers

    def _merge_quietly(self, image: Image) -> None:
        with contextlib.suppress(SandboxLost):  # As after every failed merge, the chain stays as it is.
            self.merge(image)

    @in_store_process
    def merge(self, image: Image) -> None:
        """Merge the image's layers into one. The image stays the same; existing boxes keep using the old layers."""
        stack = self.stack(image)
        if len(stack) < 2:
            return
        with self.hold(stack), self.fresh("merge") as fresh:
            merge_layers([self.layers / layer for layer in stack], fresh, self._background.check)
            self.adopt(fresh, merged_name(image.layers))

    # -- leases

    def lease(self, image: Image) -> Lease:
        """Lease the layers that a new box of this image would mount, and mark the image as used now."""
        with full_disk_as_error(self.root), locked(self.root / "leases", shared=True):
            lease = self._hold(self.stack(image))
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.root / "images" / f"{image.id}.json")
        if missing := [layer for layer in lease.layers if not self.has_layer(layer)]:
            lease.release()
            raise ImageError(f"image {image.id} lacks its layers {', '.join(missing)} in {self.root}; make it again")
        return lease

    def hold(self, layers: Iterable[str]) -> Lease:
        """Keep layers from being removed until the lease ends: existing ones, or ones about to be made."""
        with full_disk_as_error(self.root), locked(self.root / "leases", shared=True):
            return self._hold(tuple(layers))

    def _hold(self, layers: tuple[str, ...]) -> Lease:
        """Record that these layers are leased, and return the lease. The caller holds the lock on leases."""
        record = self.scratch / "leases" / secrets.token_hex(8)
        try:
            record.write_text("\n".join(layers))
        except OSError:
            record.unlink(missing_ok=True)
            raise
        folder = self.layers.relative_to(self.root)
        return Lease(layers, tuple(f"{folder}/{layer}" for layer in layers), record)


def remove_store(root: Path, ids: IdRange | None) -> None:
    """Remove a store with everything in it. No backend may be using the store."""
    store = ImageStore.for_store_process(root, ids, "")
    store.process = StoreProcess(root, store.owner, ids) if ids and ids.subordinate else None
    store._remove(root)
    if store.process is not None:
        store.process.close()


def merged_name(layers: tuple[str, ...]) -> str:
    """Return the name of the layer into which a chain of layers (`layers`, topmost first) is merged."""
    return hashlib.blake2b("\n".join(("merged", *layers)).encode(), digest_size=16).hexdigest()
