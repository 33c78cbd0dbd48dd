"""A box of the embedded backend, with the resources it holds until it ends: cells (folders of written files), a cgroup,
and a lease on its image's layers.

Snapshots and forks are in copies.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any, Protocol

from etude.sandbox.contract import Box, BoxSpec, BoxStats, SandboxLost, SandboxUnavailable
from etude.sandbox.embedded.cells import Cell
from etude.sandbox.embedded.cgroups import BoxCgroup
from etude.sandbox.embedded.probe import advice
from etude.sandbox.embedded.zygote_client import ZygoteClient
from etude.sandbox.images.full_disk import FULL_DISK, disk_full
from etude.sandbox.images.image import Image
from etude.sandbox.images.store import ImageStore, Lease
from etude.sandbox.served.box import ServedBox
from etude.sandbox.served.channel import ANSWER_SECONDS, Channel


class ForkedBox(Box, Protocol):
    """A box made by a fork. `inherit` gives it the list of commands (`Box.commands`) of its parent."""

    def inherit(self, commands: list[str]) -> None: ...


class Backend(Protocol):
    """What a box uses of the embedded backend."""

    memory_cells: bool
    store: ImageStore

    def new_cell(self, zygote: ZygoteClient) -> Cell: ...

    async def store_cell(self, zygote: ZygoteClient, cell: Cell) -> str: ...

    async def create_over(self, spec: BoxSpec, image: Image, below: list[Cell]) -> ForkedBox: ...

    def forget(self, box: EmbeddedBox) -> None: ...


class EmbeddedBox(ServedBox):
    """A box made by the zygote process. Forks and snapshots are in the subclass CopyableBox."""

    def __init__(
        self,
        backend: Backend,
        zygote: ZygoteClient,
        spec: BoxSpec,
        image: Image,
        message: dict[str, Any],
        channel: Channel,
        gone: asyncio.Future[dict[str, Any]],
        cells: list[Cell],
        lease: Lease,
        cgroup: BoxCgroup,
    ) -> None:
        super().__init__(str(message["id"]), spec, channel)
        self.image, self.lease, self.zygote = image, lease, zygote
        self.cells, self.cgroup = cells, cgroup
        self.backend, self._gone = backend, gone
        self.sealing = asyncio.Lock()
        """Lock held while a fork or snapshot makes the box's files read-only. Of overlapping ones, each waits for the
        one before it, and later forks find nothing left to seal."""
        # If the zygote dies, close the box's socket, so that the box ends even if its death signal did not arrive.
        gone.add_done_callback(lambda _: channel.close() if channel.ready.done() else None)

    async def wait_until_ready(self) -> None:
        waiting = {self._channel.ready, self._gone}
        done, _ = await asyncio.wait(waiting, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise SandboxLost(f"box {self.id} was not ready in {ANSWER_SECONDS:.0f} s")
        # A box that failed reports the reason on its own socket, but the zygote's message may arrive first.
        refused = self._gone.done() and "error" in self._gone.result()
        if not refused:
            await asyncio.wait({self._channel.ready}, timeout=ANSWER_SECONDS)
        from_init = self._channel.ready.result() if self._channel.ready.done() else {}
        answer = self._gone.result() if refused else from_init
        if answer.get("ready"):
            return
        step, error = self._failed_step(answer)
        # An exhausted limit of namespaces has the same number as a full disk.
        if step in ("cell", "overlay") and answer.get("number") in FULL_DISK:
            raise disk_full(self.backend.store.root)
        if step in ("lost", "cell", "box"):
            raise SandboxLost(f"box {self.id}: {error}")
        raise SandboxUnavailable(advice(step, error))

    async def stats(self) -> BoxStats:
        """Return the use of resources. Memory is measured by the cgroup if there is one, since pid 1 knows only that of
        its processes. The size of plain folders is measured here, since pid 1 would report the whole disk."""
        found = await super().stats()
        if (measured := self.cgroup.memory_bytes()) is not None:
            found = replace(found, memory_bytes=measured)
        if self.backend.memory_cells:
            return found
        folders = [self.backend.store.root / cell.upper.removeprefix("store/") for cell in self.cells]
        return replace(found, disk_bytes=await asyncio.to_thread(self.backend.store.measure, folders))

    async def rehearse(self) -> list[str] | None:
        """Check whether the frozen processes can be moved to another root directory. Return the files that they map
        shared, or None if they cannot be moved."""
        answer, _ = await self._ask({"op": "rehearse"})
        shared = answer.get("shared")
        if shared is not None and not (isinstance(shared, list) and all(isinstance(path, str) for path in shared)):
            raise self._channel.misbehaved("rehearse")
        return shared

    # -- the end

    async def destroy(self) -> None:
        self._channel.close()
        if not self._gone.done() and self.zygote.alive:
            with contextlib.suppress(SandboxLost):
                await self.zygote.destroy(self.id)
                await asyncio.wait({self._gone}, timeout=ANSWER_SECONDS)
        self.backend.forget(self)
