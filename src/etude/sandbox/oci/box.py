"""A box of the OCI backend: requests go to our init in the container; snapshots and forks are commits of the engine."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace
from typing import Protocol

from etude.sandbox.contract import Box, BoxSpec, BoxStats, RequestRefused, SandboxLost, SandboxUnavailable
from etude.sandbox.oci.api import Engine
from etude.sandbox.oci.attach import Attachment
from etude.sandbox.oci.images import Known
from etude.sandbox.served.box import ServedBox
from etude.sandbox.served.channel import Channel

_READY_SECONDS = 60.0
_GONE = 2
"""The engine's code for a path of the image that the box has removed."""
# What the engine itself puts into a container; the box has not written it.
_ENGINES_OWN = ("/.etude", "/.dockerenv", "/dev", "/proc", "/sys", "/run/.containerenv", "/run/secrets")
_ENGINES_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab")


@dataclass(slots=True)
class ForkImage:
    """The image that the children of a fork stand on; removed with the last of them."""

    known: Known
    users: int = 0


class Containers(Protocol):
    """What a box needs of the backend that made it."""

    engine: Engine

    def mount_points(self, known: Known) -> list[str]: ...

    async def keep(self, container: str, name: str) -> None: ...

    async def commit_fork(self, box: OciBox) -> ForkImage: ...

    async def create_over(self, spec: BoxSpec, known: Known, fork_image: ForkImage | None) -> OciBox: ...

    async def release(self, fork_image: ForkImage) -> None: ...

    async def forget(self, box: OciBox) -> None: ...


class OciBox(ServedBox):
    def __init__(
        self,
        backend: Containers,
        spec: BoxSpec,
        known: Known,
        name: str,
        channel: Channel,
        container: str,
        attachment: Attachment,
        fork_image: ForkImage | None,
    ) -> None:
        super().__init__(name, spec, channel)
        self.known, self.container, self.fork_image = known, container, fork_image
        self._backend, self._attachment = backend, attachment
        self._forgotten = False

    async def wait_until_ready(self) -> None:
        done, _ = await asyncio.wait({self._channel.ready}, timeout=_READY_SECONDS)
        if not done:
            raise SandboxLost(f"box {self.id} was not ready in {_READY_SECONDS:.0f} s")
        answer = await self._channel.ready
        if answer.get("ready"):
            return
        step, error = answer.get("step", "lost"), answer.get("error", "its process ended while it was being made")
        if step == "user":
            raise RequestRefused(f"box {self.id}: {error}")
        if step != "lost":
            raise SandboxUnavailable(
                f"a container cannot be made into a box here ({step}: {error}); its init needs a user namespace: see "
                "user.max_user_namespaces, and on hosts with AppArmor kernel.apparmor_restrict_unprivileged_userns=0"
            )
        raise SandboxLost(f"box {self.id}: {error}; {self._attachment.complaint or 'it said nothing'}")

    async def stats(self) -> BoxStats:
        """Box statistics. Init sees the engine's whole disk; only the engine knows this box's part of it."""
        seen, engines = await asyncio.gather(
            super().stats(),
            self._backend.engine.call("GET", f"/containers/{self.container}/json", params={"size": "true"}),
        )
        return replace(seen, disk_bytes=engines.get("SizeRw") or 0)

    # -- frozen copies

    async def snapshot(self) -> str:
        async with self.frozen(kill=False):
            name = await self._content()
            await self._backend.keep(self.container, name)
        return name

    async def _content(self) -> str:
        """The snapshot's image id: a digest of the image below and of what the box has changed, without times."""
        changes = await self._backend.engine.call("GET", f"/containers/{self.container}/changes") or []
        paths = sorted(
            change["Path"] for change in changes if change["Kind"] != _GONE and not self._engines(change["Path"])
        )
        gone = sorted(change["Path"] for change in changes if change["Kind"] == _GONE)
        answer, _ = await self._ask({"op": "digest"}, "\0".join(paths).encode("utf-8", "surrogateescape"))
        facts = (self.known.engine_id, self.known.image.to_json(), self.spec.workdir, gone, answer["digest"])
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()

    def _engines(self, path: str) -> bool:
        own = (*_ENGINES_OWN, *self._backend.mount_points(self.known))
        return path in _ENGINES_FILES or any(path == name or path.startswith(f"{name}/") for name in own)

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        if count < 1:
            raise RequestRefused(f"fork into {count} boxes; at least 1 is needed")
        async with self.frozen(kill=kill):
            fork_image = await self._backend.commit_fork(self)
        made = await asyncio.gather(
            *(self._backend.create_over(self.spec, fork_image.known, fork_image) for _ in range(count)),
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
