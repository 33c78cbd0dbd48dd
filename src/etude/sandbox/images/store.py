"""The backend's folder: images as layers named by content, and what each living owner holds of them.

images/<id>.json    an Image; its time is that of its last use      layers/<ids>/<name>/   a folder tree, never changed
base/<digest>/      generated trees                                 owners/<name>/         lock, leases and scratch

Invariant: a name in images/ or layers/ stands for something whole. A layer that a living owner leases stays. Trees are
touched by what is marked `as_keeper` alone; all else is notes, which belong to the caller.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from etude.sandbox.contract import DiskFull, ImageError, RequestRefused, SandboxLost
from etude.sandbox.images.flatten import Background, merge_layers
from etude.sandbox.images.ids import IdRange
from etude.sandbox.images.image import HOST, Image
from etude.sandbox.images.keeper import Keeper, as_keeper
from etude.sandbox.images.layers import FIXED_TIME
from etude.sandbox.images.owners import disk_bytes, locked, remove_dead_owners, remove_tree
from etude.sandbox.images.spreading import spread_trees
from etude.sandbox.inside.users import USERS

MAX_LAYERS = 40
"""On which an image can stand: beyond, its chain is merged before it is recorded."""
MERGE_AT = 32
"""Beyond, it is merged in the background: each layer makes every look into a box a little slower."""
_SYSTEM = {"", "bin", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr"}


def check_workdir(workdir: str, base: str = HOST) -> PurePosixPath:
    path = PurePosixPath(workdir)
    if not path.is_absolute() or ".." in path.parts or "\0" in workdir:
        raise RequestRefused(f"workdir {workdir!r}: expected an absolute path without '..', such as /work")
    if base == HOST and (*path.parts, "")[1] in _SYSTEM:
        raise RequestRefused(f"workdir {workdir!r}: expected a path outside the system's folders, such as /work")
    return path


@dataclass(slots=True)
class Lease:
    """While it is held, the layers it names stay. Ends with its owner's process at the latest."""

    layers: tuple[str, ...]
    """Names, the top first."""
    paths: tuple[str, ...]
    """The same, relative to the store."""
    _record: Path

    def release(self) -> None:
        """Safe to call twice."""
        self._record.unlink(missing_ok=True)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ImageStore:
    keeper: Keeper | None
    """Of a store whose trees belong to subordinate ids, outside of that keeper."""

    def __init__(self, root: Path, ids: IdRange | None) -> None:
        """Without a range of ids every file belongs to the caller."""
        self._stand(root, ids, f"{os.getpid()}-{secrets.token_hex(4)}")
        self.keeper = Keeper(self) if ids and ids.subordinate else None
        try:
            for folder in (root / "images", self.layers, root / "base", root / "owners"):
                folder.mkdir(parents=True, exist_ok=True)
            root.chmod(0o700)
        except OSError as error:
            raise ImageError(f"{root} cannot be a store of images: {error.strerror}: {error.filename}") from error
        # Between making an owner's folder and locking it, no janitor may look.
        with locked(root / "lock"):
            (self.scratch / "leases").mkdir(parents=True)
            spread_trees(self.scratch)
            self._lock = os.open(self.scratch / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.remove_dead_owners()

    @classmethod
    def for_keeper(cls, root: Path, ids: IdRange | None, owner: str) -> ImageStore:
        """The same store as its keeper sees it, for as long as the owner's lasts."""
        store = cls.__new__(cls)
        store._stand(root, ids, owner)
        return store

    def _stand(self, root: Path, ids: IdRange | None, owner: str) -> None:
        self.root, self.ids, self.owner = root, ids, owner
        self.layers = root / "layers" / ("own" if ids is None else ids.name)
        """Trees belong to ids, so each way of giving ids has its own; names are the same in all."""
        self.scratch = root / "owners" / owner
        self.keeper = None
        self._background = Background()

    def close(self) -> None:
        self._background.stop()
        if self.keeper is not None:
            self.keeper.close()  # It does not look up from a merge; a new one removes what is left.
        self._background.close()
        try:
            self._remove(self.scratch)
        finally:
            if self.keeper is not None:
                self.keeper.close()
            os.close(self._lock)

    def finish(self) -> None:
        """Waits for what is done in the background."""
        self._background.finish()

    def remove_dead_owners(self) -> None:
        """The janitor."""
        remove_dead_owners(self.root / "owners", self._remove)

    def _remove(self, path: Path) -> None:
        """What no box has written to needs no keeper, nor what is not there."""
        try:
            remove_tree(path)
        except PermissionError:
            if self.keeper is None:
                raise
            self._remove_in_keeper(path)

    @as_keeper
    def _remove_in_keeper(self, path: Path) -> None:
        remove_tree(path)

    @contextlib.contextmanager
    def fresh(self, kind: str) -> Iterator[Path]:
        """A name in this owner's scratch that nothing has yet; what is there at the end, and not adopted, goes."""
        path = self.scratch / f"{kind}-{secrets.token_hex(4)}"
        try:
            yield path
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFull(f"no room in {self.root}; `etude sandbox images collect` frees what is not used") from error
        finally:
            remove_tree(path)

    def write(self, path: Path, text: str) -> None:
        """A small file, whole or not at all."""
        with self.fresh("note") as fresh:
            fresh.write_text(text)
            fresh.rename(path)

    # -- layers

    def has_layer(self, name: str) -> bool:
        return (self.layers / name).is_dir()

    @as_keeper
    def adopt(self, fresh: Path, layer: str) -> None:
        """Gives a finished tree its name; when the name is taken, the content is the same and the copy goes."""
        try:
            fresh.rename(self.layers / layer)
        except OSError:
            remove_tree(fresh)
            if not self.has_layer(layer):
                raise

    def add(self, files: dict[str, bytes], base: str, workdir: str) -> str:
        """An image of another and files below a workdir, which belong to its agent."""
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

    @as_keeper
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

    @as_keeper
    def measure(self, trees: Sequence[Path]) -> int:
        """Their bytes on the disk."""
        return sum(disk_bytes(tree) for tree in trees)

    # -- images

    def record(self, image: Image, origin: str = "") -> str:
        """Writes an image down, and returns its id: that of the same layers and settings is the same."""
        # A layer below itself shows nothing that its upper place does not; overlayfs refuses it.
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
        """RequestRefused for a name that stands for nothing, ImageError for what is damaged."""
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
        """Ids and the time of their last use, the least recent first."""
        found = []
        for path in (self.root / "images").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stem, path.stat().st_mtime))
        yield from sorted(found, key=lambda item: item[1])

    def origin(self, name: str) -> str:
        path = self.root / "images" / f"{name}.origin"
        return path.read_text() if path.is_file() else ""

    def forget(self, name: str) -> None:
        """Layers go when they are collected."""
        for suffix in (".json", ".origin"):
            (self.root / "images" / f"{name}{suffix}").unlink(missing_ok=True)

    def stack(self, image: Image) -> tuple[str, ...]:
        """The layers to mount, the top first: the longest chain at the bottom that has been merged is one."""
        for index in range(len(image.layers) - 1):
            merged = merged_name(image.layers[index:])
            if self.has_layer(merged):
                return (*image.layers[:index], merged)
        return image.layers

    def _merge_quietly(self, image: Image) -> None:
        with contextlib.suppress(SandboxLost):  # As with every other failure of it, the chain stays as it is.
            self.merge(image)

    @as_keeper
    def merge(self, image: Image) -> None:
        """Makes one layer of an image's chain. The image is the same; boxes that stand on the old layers keep them."""
        stack = self.stack(image)
        if len(stack) < 2:
            return
        with self.hold(stack), self.fresh("merge") as fresh:
            merge_layers([self.layers / layer for layer in stack], fresh, self._background.check)
            self.adopt(fresh, merged_name(image.layers))

    # -- leases

    def lease(self, image: Image) -> Lease:
        """Holds what an image stands on now, and notes that it is used."""
        with locked(self.root / "leases", shared=True):
            lease = self._hold(self.stack(image))
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.root / "images" / f"{image.id}.json")
        if missing := [layer for layer in lease.layers if not self.has_layer(layer)]:
            lease.release()
            raise ImageError(f"image {image.id} lacks its layers {', '.join(missing)} in {self.root}; make it again")
        return lease

    def hold(self, layers: Iterable[str]) -> Lease:
        """Holds layers that are there or will be, as while an image is imported."""
        with locked(self.root / "leases", shared=True):
            return self._hold(tuple(layers))

    def _hold(self, layers: tuple[str, ...]) -> Lease:
        record = self.scratch / "leases" / secrets.token_hex(8)
        record.write_text("\n".join(layers))
        folder = self.layers.relative_to(self.root)
        return Lease(layers, tuple(f"{folder}/{layer}" for layer in layers), record)


def remove_store(root: Path, ids: IdRange | None) -> None:
    """With all that is in it. Nobody may be at work there."""
    store = ImageStore.for_keeper(root, ids, "")
    store.keeper = Keeper(store) if ids and ids.subordinate else None
    store._remove(root)
    if store.keeper is not None:
        store.keeper.close()


def merged_name(layers: tuple[str, ...]) -> str:
    return hashlib.blake2b("\n".join(("merged", *layers)).encode(), digest_size=16).hexdigest()
