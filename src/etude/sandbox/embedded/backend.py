"""The embedded backend: boxes made of namespaces and overlayfs, without a daemon, Docker or root.

Invariant: a box is one process tree under its own pid 1, and keeps what it writes in cells (folders). The processes and
cells of all boxes belong to the zygote process. A box's processes and cells are removed when the box, the backend or
the owner's process ends, for whatever reason.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from etude.sandbox.commands import ENVIRONMENT
from etude.sandbox.contract import (
    Box,
    BoxSpec,
    BuildTerms,
    Capability,
    Egress,
    Feature,
    Limits,
    SandboxError,
    TriedBuild,
)
from etude.sandbox.egress.upstream import Upstream
from etude.sandbox.embedded.box import EmbeddedBox
from etude.sandbox.embedded.cells import Cell, drop, hold, layers_of
from etude.sandbox.embedded.cgroups import BoxCgroup, Cgroups
from etude.sandbox.embedded.copies import CopyableBox
from etude.sandbox.embedded.probe import Host, probe_host
from etude.sandbox.embedded.zygote_client import ZygoteClient
from etude.sandbox.images import build, importing, registry
from etude.sandbox.images.full_disk import full_disk_as_error
from etude.sandbox.images.host_base import build_bases
from etude.sandbox.images.image import HOST, Image
from etude.sandbox.images.spreading import spread_trees
from etude.sandbox.images.stack import Stack
from etude.sandbox.images.store import ImageStore, Lease, check_workdir, remove_store
from etude.sandbox.inside.users import USERS
from etude.sandbox.inside.zygote_root import SHM_MB, ZygoteSettings
from etude.sandbox.options import BuildOptions
from etude.sandbox.served.channel import Channel

if TYPE_CHECKING:
    from etude.sandbox.egress.gate import BoxEgress, EgressGate

_INIT_MB = 16
"""Memory in MB for pid 1 and for what the kernel keeps per box."""


class EmbeddedSandboxes:
    """The embedded sandbox backend; it implements `contract.Sandboxes`."""

    def __init__(self, root: Path, *, memory_cells: bool | None = None, upstream: Upstream | None = None) -> None:
        """Start the zygote, which takes about 60 ms. `root` is the folder for images and boxes. `memory_cells`: keep
        files that boxes write in memory; by default, if the host supports it. `upstream` makes the egress connections
        to real hosts, and may redirect some of them (for mirrors and tests)."""
        self.host: Host = probe_host()
        self.memory_cells = self.host.memory_cells if memory_cells is None else memory_cells
        self.store = ImageStore(Path(root).absolute(), self.host.ids)
        self.cgroups = Cgroups.find()
        self._boxes: dict[str, EmbeddedBox] = {}
        self._names = itertools.count(1)
        self._closed = False
        self._upstream = upstream or Upstream()
        self._egress: EgressGate | None = None
        try:
            with full_disk_as_error(self.store.root):
                self._zygote = self._start_zygote()
        except BaseException:
            self.store.close()
            if self.cgroups is not None:
                self.cgroups.close()
            raise

    def _start_zygote(self) -> ZygoteClient:
        root, scratch = self.store.root, self.store.scratch
        ids = self.host.ids
        bases = build_bases(root, ids.name if ids else None)
        self._skeletons = bases.skeletons
        for name in ("stage", "cells"):
            (scratch / name).mkdir(exist_ok=True)
        spread_trees(scratch / "cells")
        settings = ZygoteSettings(
            store=str(root),
            stage=str(scratch / "stage"),
            skeletons=bases.skeletons,
            binds=bases.binds,
            range_base=ids.first if ids else None,
            range_count=ids.count if ids else 1,
            spare_ranges=ids.spare if ids else 0,
            subordinate=ids.subordinate if ids else None,
            memory=self.memory_cells,
        )
        return ZygoteClient(settings)

    @property
    def features(self) -> frozenset[Feature]:
        found = {
            Feature.FORK,
            Feature.SNAPSHOT,
            Feature.NO_NETWORK,
            Feature.EGRESS,
            Feature.MEMORY_LIMIT,
            Feature.PROCESS_LIMIT,
            Feature.PTY,
            Feature.BACKGROUND,
            Feature.ISOLATED,
        }
        if self.memory_cells:
            found.add(Feature.DISK_LIMIT)
        if self.host.ids is not None:
            found |= {Feature.SECOND_USER, Feature.ROOT_USER}
        if self._zygote.own_ids:
            found.add(Feature.OWN_IDS)
        return frozenset(found)

    @property
    def capabilities(self) -> frozenset[Capability]:
        found = {
            Capability.HOST_FILES,
            Capability.NAMESPACES,
            Capability.OWN_INIT,
            Capability.SYSTEM_CALLS,
            Capability.KERNEL_TABLES,
        }
        if self.cgroups is not None and self.cgroups.limits_buffers:
            found.add(Capability.BUFFER_MEMORY)
        return frozenset(found)

    # -- images

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        return await asyncio.to_thread(self.store.add, files, base, workdir)

    async def import_image(self, source: Path) -> str:
        return await asyncio.to_thread(importing.import_image, self.store, source)

    async def pull_image(self, reference: str) -> str:
        return await asyncio.to_thread(registry.pull, self.store, reference)

    async def build_image(self, context: Path, **options: Unpack[BuildOptions]) -> str:
        return await build.build_image(self, self.store, context, **options)

    @asynccontextmanager
    async def try_build(
        self,
        context: Path,
        terms: BuildTerms,
        *,
        arguments: dict[str, str] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> AsyncIterator[TriedBuild]:
        """Make a trial build of the Dockerfile in `context`: in a separate store, in this store's scratch folder, with
        its own zygote (the process that makes boxes). Store and zygote are removed at the end."""
        folder = self.store.scratch / f"trial-{secrets.token_hex(6)}"
        try:
            trial = EmbeddedSandboxes(folder, memory_cells=self.memory_cells, upstream=self._upstream)
            try:
                yield await build.try_build(trial, trial.store, context, terms, arguments, say or (lambda _: None))
            finally:
                await trial.close()
        finally:
            await asyncio.to_thread(remove_store, folder, self.host.ids)

    # -- boxes

    async def create(self, spec: BoxSpec) -> Box:
        image = self.store.image(spec.image)
        if spec.workdir:
            check_workdir(spec.workdir, image.base)
        return await self.create_over(replace(spec, workdir=spec.workdir or image.config.workdir), image, [])

    async def create_over(self, spec: BoxSpec, image: Image, below: list[Cell]) -> CopyableBox:
        """Make a box on top of the cells `below` (topmost first), which lie on top of the image."""
        zygote = self._running_zygote()
        number = next(self._names)
        name, identity = spec.name or f"box-{number}", f"{self.store.owner}-{number}"
        cells = [self.new_cell(zygote), *below]
        lease = self.store.lease(image)
        door = None
        if spec.egress.allow:
            try:
                with full_disk_as_error(self.store.root):
                    door, lease = self._open_egress(spec.egress, identity, image, lease)
            except BaseException:
                lease.release()
                raise
        cgroup = self._new_cgroup(str(number), spec.limits)
        message = {
            "id": identity,
            "cell": cells[0].path,
            "layers": layers_of(below, lease.paths),
            "base": image.base,
            "workdir": spec.workdir,
            # The workdir belongs to the image's root by default, as with a container engine. On the host base, it
            # belongs to the agent.
            "owner": USERS["agent"] if image.base == HOST else 0,
            "user": image.config.user,
            "single_id": USERS["agent"] if image.base == HOST else 0,
            "ids": self.host.ids.count if self.host.ids else 1,
            "ports": door.ports if door else [],
            "limits": asdict(spec.limits),
            "memory_held": cgroup.limits_memory,
            "env": {**ENVIRONMENT, **(door.env if door else {}), **dict(image.config.env), **dict(spec.env)},
        }
        hold(cells)

        def ended() -> None:
            cgroup.remove()
            lease.release()
            if door:
                door.shut()
            drop(box.cells if box else cells)
            if box:
                self.forget(box)

        box: CopyableBox | None = None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs, cgroup.open_entry_files() as entries:
                ends = [theirs.fileno(), *([door.box_end.fileno()] if door else [])]
                gone = await zygote.create(message, [*ends, *entries], ended)
        except BaseException:
            ours.close()
            ended()
            raise
        channel = Channel(name)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        box = CopyableBox(self, zygote, spec, image, message, channel, gone, cells, lease, cgroup)
        self._boxes[box.id] = box
        try:
            await box.wait_until_ready()
            if door:
                door.open()
        except BaseException:
            await box.destroy()
            raise
        return box

    def _new_cgroup(self, name: str, limits: Limits) -> BoxCgroup:
        """Make a box's cgroup. Its memory limit includes all that the box may write to files in memory (tmpfs), since
        these count towards it and outlive the commands that wrote them. Otherwise they could fill the limit, and the
        kernel would have to kill pid 1 instead of a command."""
        if self.cgroups is None:
            return BoxCgroup([])
        mib = limits.memory_mb + _INIT_MB + SHM_MB + (limits.disk_mb if self.memory_cells else 0)
        return self.cgroups.create(name, memory_bytes=mib << 20, processes=limits.processes)

    def _open_egress(self, egress: Egress, box: str, image: Image, lease: Lease) -> tuple[BoxEgress, Lease]:
        """Return the box's network access, and the image's lease with one more layer on top. With this layer, programs
        in the box trust the certificate authority of this backend's egress proxy, and use the proxy's name server."""
        if self._egress is None:
            # Imported here because it loads cryptography, which is slow.
            from etude.sandbox.egress.gate import EgressGate

            self._egress = EgressGate(self.store, self._upstream)
        stack = Stack(tuple(self.store.root / path for path in (*lease.paths, self._skeletons[image.base])))
        layer = self._egress.layer_for(image.id, stack).relative_to(self.store.root)
        return self._egress.for_box(egress, box), replace(lease, paths=(str(layer), *lease.paths))

    def new_cell(self, zygote: ZygoteClient) -> Cell:
        """Name a new cell (a folder for what a box writes); the zygote makes it."""
        folder = "cells" if self.memory_cells else f"store/owners/{self.store.owner}/cells"
        # The box can read this name, so it must not reveal how many other boxes there are.
        return Cell(f"{folder}/{secrets.token_hex(6)}", zygote.release)

    def _running_zygote(self) -> ZygoteClient:
        """Return the zygote's client, attached to the running event loop. If the zygote has died, start another."""
        if self._closed:
            raise SandboxError("this backend is closed; open another")
        if not self._zygote.alive:
            self._zygote = self._start_zygote()
        self._zygote.attach()
        return self._zygote

    async def store_cell(self, zygote: ZygoteClient, cell: Cell) -> str:
        """Copy a cell (a folder of written files, which no process may change meanwhile) into the store. Return the
        layer's name."""
        # The name is random, because ext4 chooses the disk region of a folder by its name: this distributes the copies
        # over the disk.
        fresh = f"keep-{secrets.token_hex(6)}"
        digest = await zygote.copy([cell.upper], f"store/owners/{self.store.owner}/{fresh}")
        await asyncio.to_thread(self.store.adopt, self.store.scratch / fresh, digest)
        return digest

    def forget(self, box: EmbeddedBox) -> None:
        self._boxes.pop(box.id, None)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(box.destroy() for box in list(self._boxes.values())))
        if self._zygote.alive:
            self._zygote.hang_up()
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        self._zygote.reap()
        if self.cgroups is not None:
            self.cgroups.close()
        self.store.close()
