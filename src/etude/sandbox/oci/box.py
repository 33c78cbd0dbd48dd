"""A box of the OCI backend. Requests go to our init in the container; for snapshots and forks, the engine commits the
container."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Protocol

from etude.sandbox.contract import (
    Box,
    BoxBusy,
    BoxSpec,
    BoxStats,
    RequestRefused,
    SandboxLost,
    SandboxUnavailable,
)
from etude.sandbox.oci.api import Engine, EngineError
from etude.sandbox.oci.attachment import Attachment
from etude.sandbox.oci.images import EngineImage
from etude.sandbox.served.box import ServedBox
from etude.sandbox.served.channel import Channel

_READY_SECONDS = 60.0
_TOO_LONG = os.strerror(errno.ENAMETOOLONG).lower()
"""Part of an engine's error message about a path with more bytes than the kernel takes."""
_DELETED = 2
"""In the engine's list of a container's changed paths, the `Kind` of a deleted path."""
# Paths that the engine itself puts into each container. They are no changes made by the box.
_ENGINE_FOLDERS = ("/.etude", "/.dockerenv", "/dev", "/proc", "/sys", "/run/.containerenv", "/run/secrets")
_ENGINE_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab")


@dataclass(slots=True)
class ForkImage:
    """The image from which the boxes of one fork are made. It is removed when the last of these boxes is."""

    engine_image: EngineImage
    users: int = 0
    """Number of living boxes that were made from this image."""


class BoxBackend(Protocol):
    """The part of the OCI backend (`OciSandboxes`) that its boxes call."""

    engine: Engine

    def mount_points(self, engine_image: EngineImage) -> list[str]: ...

    async def keep(self, container: str, name: str) -> None: ...

    async def commit_fork(self, box: OciBox) -> ForkImage: ...

    async def create_over(self, spec: BoxSpec, engine_image: EngineImage, fork_image: ForkImage | None) -> OciBox: ...

    async def release(self, fork_image: ForkImage) -> None: ...

    async def forget(self, box: OciBox) -> None: ...


class OciBox(ServedBox):
    def __init__(
        self,
        backend: BoxBackend,
        spec: BoxSpec,
        engine_image: EngineImage,
        name: str,
        channel: Channel,
        container: str,
        attachment: Attachment,
        fork_image: ForkImage | None,
    ) -> None:
        super().__init__(name, spec, channel)
        self.engine_image, self.container, self.fork_image = engine_image, container, fork_image
        self._backend, self._attachment = backend, attachment
        self._forgotten = False

    async def wait_until_ready(self) -> None:
        done, _ = await asyncio.wait({self._channel.ready}, timeout=_READY_SECONDS)
        if not done:
            raise SandboxLost(f"box {self.id} was not ready in {_READY_SECONDS:.0f} s")
        answer = await self._channel.ready
        if answer.get("ready"):
            return
        step, error = self._failed_step(answer)
        if step == "openat2 and pidfd_open":
            raise SandboxUnavailable(
                f"a container cannot be made into a box here ({error}): its runtime's kernel lacks system calls, as "
                "gVisor's runsc of 2022 and 2024 does: use runc, crun or Kata"
            )
        if step != "lost":
            raise SandboxUnavailable(
                f"a container cannot be made into a box here ({step}: {error}); its init needs a user namespace: see "
                "user.max_user_namespaces, and on hosts with AppArmor kernel.apparmor_restrict_unprivileged_userns=0"
            )
        raise SandboxLost(f"box {self.id}: {error}; {self._attachment.stderr_tail or 'it wrote nothing to stderr'}")

    async def stats(self) -> BoxStats:
        """Return the box's resource use. Its disk use comes from the engine, because the box's init can measure only
        the whole disk, which all containers share."""
        measured, inspected = await asyncio.gather(
            super().stats(),
            self._backend.engine.call("GET", f"/containers/{self.container}/json", params={"size": "true"}),
        )
        return replace(measured, disk_bytes=inspected.get("SizeRw") or 0)

    # -- frozen copies

    @contextlib.asynccontextmanager
    async def _held(self, *, kill: bool) -> AsyncIterator[None]:
        """Stop the box's processes during the block, so that the engine can commit a consistent state of its container.
        Raises BoxBusy if a process could wake meanwhile: it could write, since init cannot make the files read-only."""
        async with self.frozen(kill=kill) as frozen:
            if frozen.free:
                raise BoxBusy(
                    f"box {self.id} has a process that cannot be held still ({frozen.free}): end it, or kill=True"
                )
            try:
                yield
            except EngineError as error:
                if _TOO_LONG not in str(error):
                    raise
                raise RequestRefused(f"box {self.id}: folders are nested too deep for the engine") from error

    async def snapshot(self) -> str:
        async with self._held(kill=False):
            name = await self._snapshot_id()
            await self._backend.keep(self.container, name)
        return name

    async def _snapshot_id(self) -> str:
        """Return a digest of the base image, the workdir and the files that the box has changed, without their
        times."""
        changes = await self._backend.engine.call("GET", f"/containers/{self.container}/changes") or []
        paths = sorted(
            change["Path"] for change in changes if change["Kind"] != _DELETED and not self._is_engines(change["Path"])
        )
        gone = sorted(change["Path"] for change in changes if change["Kind"] == _DELETED)
        asked = "\0".join(paths).encode("utf-8", "surrogateescape")
        answer, _ = await self._ask({"op": "digest"}, asked, fields={"digest": (str,)})
        facts = (
            self.engine_image.engine_id,
            self.engine_image.image.to_json(),
            self.spec.workdir,
            gone,
            answer["digest"],
        )
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()

    def _is_engines(self, path: str) -> bool:
        """Whether the engine itself puts this path into every container, so that it is no change made by the box."""
        own = (*_ENGINE_FOLDERS, *self._backend.mount_points(self.engine_image))
        return path in _ENGINE_FILES or any(path == name or path.startswith(f"{name}/") for name in own)

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        if count < 1:
            raise RequestRefused(f"fork into {count} boxes; at least 1 is needed")
        async with self._held(kill=kill):
            fork_image = await self._backend.commit_fork(self)
        made = await asyncio.gather(
            *(self._backend.create_over(self.spec, fork_image.engine_image, fork_image) for _ in range(count)),
            return_exceptions=True,
        )
        failed = [error for error in made if isinstance(error, BaseException)]
        if failed:
            await asyncio.gather(*(box.destroy() for box in made if isinstance(box, OciBox)))
            await self._backend.release(fork_image)
            raise failed[0]
        children = [box for box in made if isinstance(box, OciBox)]
        for child in children:
            child.inherit(self.commands)
        return list(children)

    async def destroy(self) -> None:
        self._channel.close()
        if not self._forgotten:
            self._forgotten = True
            await self._backend.forget(self)
