"""A backend whose boxes are folders of the host, into which an image's layers are copied. It supports only images based
on the host's own system folders (the base `host`)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from etude.sandbox.contract import Box, BoxBusy, BoxSpec, Capability, Feature, ImageError, RequestRefused, SandboxError
from etude.sandbox.images.full_disk import full_disk_as_error
from etude.sandbox.images.host_base import build_bases
from etude.sandbox.images.image import HOST, Image
from etude.sandbox.images.owners import remove_tree
from etude.sandbox.images.store import ImageStore, check_workdir
from etude.sandbox.inside import content, seal, walk
from etude.sandbox.modes.confinement import BoxFolder, Confinement
from etude.sandbox.modes.folder_box import FolderBox
from etude.sandbox.options import BuildOptions


class FolderSandboxes:
    def __init__(self, root: Path, confinement: Confinement) -> None:
        self.confinement = confinement
        self.store = ImageStore(Path(root).absolute(), None)
        self._boxes: dict[str, FolderBox] = {}
        self._names = itertools.count(1)
        self._closed = False
        bases = build_bases(self.store.root, None)
        self._skeleton = self.store.root / bases.skeletons[HOST]
        self._binds = tuple((self._on_host(source), target) for source, target in bases.binds)

    def _on_host(self, source: str) -> str:
        return str(self.store.root / source.removeprefix("store:")) if source.startswith("store:") else source

    @property
    def features(self) -> frozenset[Feature]:
        return self.confinement.features

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.confinement.capabilities

    # -- images

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        return await asyncio.to_thread(self.store.add, files, base, workdir)

    async def import_image(self, source: Path) -> str:
        raise self._no_images()

    async def pull_image(self, reference: str) -> str:
        raise self._no_images()

    async def build_image(self, context: Path, **options: Unpack[BuildOptions]) -> str:
        raise self._no_images()

    def _no_images(self) -> RequestRefused:
        return RequestRefused(
            f"mode {self.confinement.name} has images of the host's folders alone; see `etude sandbox doctor`"
        )

    # -- boxes

    async def create(self, spec: BoxSpec) -> Box:
        image = self.store.image(spec.image)
        if image.base != HOST:
            raise self._no_images()
        if spec.egress.allow:
            raise RequestRefused(f"mode {self.confinement.name} has no egress; see `etude sandbox doctor`")
        workdir = spec.workdir or image.config.workdir
        check_workdir(workdir)
        return await self._make(
            replace(spec, workdir=workdir), image, [], lambda root: self._build(root, image, workdir)
        )

    async def copy_of(self, box: FolderBox) -> FolderBox:
        spec, source = box.spec, box.folder.root
        return await self._make(spec, box.image, box.commands, lambda root: copy_trees([source], root))

    async def _make(
        self, spec: BoxSpec, image: Image, commands: list[str], fill: Callable[[Path], object]
    ) -> FolderBox:
        if self._closed:
            raise SandboxError("this backend is closed; open another")
        name = f"{self.store.owner}-{next(self._names)}"
        root = self.store.scratch / "boxes" / name
        try:
            with full_disk_as_error(self.store.root):
                root.mkdir(parents=True)
                await asyncio.to_thread(fill, root)
        except BaseException:
            remove_tree(root)
            raise
        box = FolderBox(
            self, name, spec, image, BoxFolder(root, self.store.scratch, spec.workdir, self._binds), commands
        )
        self._boxes[name] = box
        return box

    def _build(self, root: Path, image: Image, workdir: str) -> None:
        """Fill the root folder of a new box. The lowest layer is generated (host_base.py). The image's layers come on
        top, and then the folders that every box has are added."""
        copy_trees([*(self.store.layers / layer for layer in image.layers), self._skeleton], root)
        for folder in (f".{workdir}", "bin-of-box", "tmp"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for name in ("python", "python3"):
            with contextlib.suppress(FileExistsError):
                (root / "bin-of-box" / name).symlink_to(sys.executable)

    async def keep(self, box: FolderBox) -> str:
        """Save the box's files as an image: one layer over the host's folders."""

        def copy() -> str:
            with self.store.fresh("snapshot") as fresh:
                layer = copy_trees([box.folder.root], fresh)
                self.store.adopt(fresh, layer)
            return layer

        config = replace(box.image.config, workdir=box.spec.workdir)
        return self.store.record(Image(HOST, (await asyncio.to_thread(copy),), config))

    def size(self, tree: Path) -> int:
        """Return the bytes of all files in a tree. Files that vanish meanwhile or whose path is too long are not
        counted."""
        total = 0
        top = walk.open_top(str(tree))
        try:
            for _, number, names, enter in walk.walk(top, whole=False):
                for name in names:
                    info = walk.look_at(number, name)
                    if info is not None and stat.S_ISDIR(info.st_mode):
                        enter.append(name)
                    elif info is not None and stat.S_ISREG(info.st_mode):
                        total += info.st_size
        finally:
            os.close(top)
        return total

    def size_of(self, image: Image) -> int:
        """Return the bytes of the files that a new box of this image has."""
        return self.size(self._skeleton) + sum(self.size(self.store.layers / layer) for layer in image.layers)

    async def forget(self, box: FolderBox) -> None:
        if self._boxes.pop(box.id, None):
            await asyncio.to_thread(remove_tree, box.folder.root)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.gather(*(box.destroy() for box in list(self._boxes.values())))
            await asyncio.to_thread(self.store.close)


def copy_trees(sources: Sequence[Path], target: Path) -> str:
    """Copy trees into the empty folder `target`, the first one topmost. Return a digest of what was copied. Raise
    ImageError if a layer of the embedded backend deletes a file of a lower layer, which this backend cannot show."""
    try:
        return seal.copy_layers([str(source) for source in sources], str(target), deletions=False)
    except seal.Refused as refusal:
        if refusal.deletion:
            raise ImageError(f"{refusal}: the embedded backend made it; add the image again") from None
        raise RequestRefused(str(refusal)) from None
    except content.Changed as change:
        raise BoxBusy(f"a process changes the box's files: {change}: wait, or kill=True") from None
