"""The OCI backend: boxes are containers of a Docker or podman engine, in which this project's own init is pid 1.

Invariant: a box lives as long as the connection to its container's streams. When the process that owns the box ends,
the engine closes the streams, init ends, and the engine removes the container. Commands are run by the same init as in
the embedded backend, so both backends keep one contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from etude.sandbox.commands import ENVIRONMENT
from etude.sandbox.contract import (
    Box,
    BoxSpec,
    Capability,
    Egress,
    Feature,
    RequestRefused,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from etude.sandbox.images.image import HOST
from etude.sandbox.images.store import check_workdir
from etude.sandbox.inside.zygote_root import HOSTNAME
from etude.sandbox.oci import runtimes
from etude.sandbox.oci.box import ForkImage, OciBox
from etude.sandbox.oci.endpoint import find_engine
from etude.sandbox.oci.images import EngineImage, OciImages
from etude.sandbox.oci.init_bundle import BUNDLE_FOLDER, INIT, write_init_bundle
from etude.sandbox.oci.owner import FORKS, OWNER, Owner, remove_leftovers
from etude.sandbox.oci.tars import chunks
from etude.sandbox.options import Build, BuildOptions
from etude.sandbox.served.channel import Channel

_INIT_MB, _INIT_PROCESSES = 32, 4
"""Memory in MB and number of processes that the container's limits add for init itself. The container may have twice
the box's memory: its limit is only a last resort, against memory that no process maps. Init enforces the box's limit,
since it can tell which command to end."""
# Capabilities that init has briefly, to map the container's ids into its user namespace. Commands never have them.
_RIGHTS = ["SETUID", "SETGID", "SETFCAP"]


class OciSandboxes:
    def __init__(self, root: Path, *, endpoint: str = "", runtime: str = "", base: str = "") -> None:
        """`root` is the folder of the image store. `base` is what the image name "host" stands for: an image of the
        engine, a tar, or if empty, this host's system folders, for which the engine must be on this host. `endpoint` is
        the engine's address (see find_engine). `runtime` is runc, crun, runsc or kata; empty: the engine's default."""
        self.engine, self.runtime, self.owner = find_engine(endpoint), runtime, Owner.new()
        self.engine.require_runtime(runtime)
        if refusal := runtimes.refusal(runtime, local=self.engine.local):
            raise SandboxUnavailable(refusal)
        self._root = Path(root).absolute()
        self._root.mkdir(parents=True, exist_ok=True)
        self.images = OciImages(self.engine, self._root, base)
        self._volume = f"etude-{self.owner.name}"
        self._opening: asyncio.Future[None] | None = None
        self._boxes: dict[str, OciBox] = {}
        self._names = itertools.count(1)
        self._closed = False

    @property
    def features(self) -> frozenset[Feature]:
        found = {
            Feature.FORK,
            Feature.SNAPSHOT,
            Feature.NO_NETWORK,
            Feature.MEMORY_LIMIT,
            Feature.PROCESS_LIMIT,
            Feature.SECOND_USER,
            Feature.PTY,
            Feature.BACKGROUND,
            Feature.ISOLATED,
        }
        if self.engine.root_is_apart:
            found.add(Feature.ROOT_USER)
        return frozenset(found)

    @property
    def capabilities(self) -> frozenset[Capability]:
        ours = frozenset({Capability.HOST_FILES, Capability.NAMESPACES, Capability.OWN_INIT, Capability.SYSTEM_CALLS})
        return ours | runtimes.capabilities_of(self.runtime)

    # -- images

    async def add_image(self, files: dict[str, bytes], *, base: str = HOST, workdir: str = "/work") -> str:
        return await self.images.add(files, base, workdir)

    async def import_image(self, source: Path) -> str:
        return await self.images.import_file(Path(source))

    async def pull_image(self, reference: str) -> str:
        return await self.images.pull(reference)

    async def build_image(self, context: Path, **options: Unpack[BuildOptions]) -> str:
        asked = Build(Path(context), **options)
        _refuse_egress(asked.egress)
        say = asked.say or (lambda _: None)
        return await self.images.build(asked.context, asked.dockerfile, asked.target, asked.arguments, say)

    # -- boxes

    async def create(self, spec: BoxSpec) -> Box:
        _refuse_egress(spec.egress)
        engine_image = await self.images.find_image(spec.image)
        if spec.workdir:
            check_workdir(spec.workdir)
        return await self.create_over(
            replace(spec, workdir=spec.workdir or engine_image.image.config.workdir), engine_image, None
        )

    async def create_over(self, spec: BoxSpec, engine_image: EngineImage, fork_image: ForkImage | None) -> OciBox:
        """Make a box from an image of the engine. `fork_image` is that image's record if a fork makes the box."""
        await self._open(engine_image)
        number = next(self._names)
        name = f"etude-{self.owner.name}-{number}"
        config = engine_image.image.config
        message = {
            "id": name,
            "workdir": spec.workdir,
            "user": config.user,
            "root_is_apart": self.engine.root_is_apart,
            "limits": asdict(spec.limits),
            "env": {**ENVIRONMENT, **dict(config.env), **dict(spec.env)},
        }
        container = await self.engine.create(name, self._container(spec, engine_image, message))
        try:
            channel = Channel(spec.name or name)
            attachment = await self.engine.attach(container, channel)
            box = OciBox(self, spec, engine_image, name, channel, container, attachment, fork_image)
            await self.engine.call("POST", f"/containers/{container}/start")
            await box.wait_until_ready()
        except BaseException:
            await asyncio.shield(self.engine.remove("containers", container))
            raise
        self._boxes[box.id] = box
        if fork_image:
            fork_image.users += 1
        return box

    def _container(self, spec: BoxSpec, engine_image: EngineImage, message: dict[str, Any]) -> dict[str, Any]:
        image = replace(engine_image.image, config=replace(engine_image.image.config, workdir=spec.workdir))
        memory = (2 * spec.limits.memory_mb + _INIT_MB) << 20
        host = {
            "Runtime": self.runtime,
            "AutoRemove": True,
            "NetworkMode": "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "LogConfig": {"Type": "none"},
            "Binds": [f"{self._volume}:{BUNDLE_FOLDER}:ro", *self._binds(engine_image)],
            "CapDrop": ["ALL"],
            "CapAdd": _RIGHTS,
            # Init installs our own deny-list for itself and its descendants; the engine's would deny init its
            # namespaces.
            "SecurityOpt": ["no-new-privileges", "seccomp=unconfined", "apparmor=unconfined"],
            "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
            "Memory": memory,
            "MemorySwap": memory,
            "PidsLimit": spec.limits.processes + _INIT_PROCESSES,
        }
        return {
            "Image": engine_image.reference,
            "Entrypoint": INIT,
            "Cmd": [json.dumps(message)],
            "User": "0:0",
            "WorkingDir": "/",
            "Hostname": HOSTNAME,
            "Labels": {**self.images.labels(image), OWNER: str(self.owner)},
            "NetworkDisabled": True,
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "StopSignal": "SIGKILL",
            "HostConfig": host,
        }

    def _binds(self, engine_image: EngineImage) -> list[str]:
        """Return the mounts of host folders, in the engine's notation. Only images on the base HOST have any."""
        return self.images.binds if engine_image.image.base == HOST else []

    def mount_points(self, engine_image: EngineImage) -> list[str]:
        return [bind.split(":")[1] for bind in self._binds(engine_image)]

    async def _open(self, engine_image: EngineImage) -> None:
        """Prepare the backend when its first box is made. Concurrent callers wait for the same preparation."""
        if self._closed:
            raise SandboxError("this backend is closed; open another")
        opening = self._opening = self._opening or asyncio.ensure_future(self._prepare(engine_image))
        try:
            await asyncio.shield(opening)
        except (SandboxError, OSError):
            self._opening = None
            raise

    async def _prepare(self, engine_image: EngineImage) -> None:
        """Remove what dead processes have left in the engine. Then make the volume with the files of our init, which is
        mounted in every container."""
        await remove_leftovers(self.engine)
        labels = {OWNER: str(self.owner)}
        await self.engine.call("POST", "/volumes/create", body={"Name": self._volume, "Labels": labels})
        host = {"Binds": [f"{self._volume}:{BUNDLE_FOLDER}"], "NetworkMode": "none"}
        body = {"Image": engine_image.reference, "Cmd": ["-"], "Labels": labels, "HostConfig": host}
        container = await self.engine.create("", body)
        try:
            tar = await asyncio.to_thread(write_init_bundle, self._root)
            await self.engine.put(container, BUNDLE_FOLDER, chunks(tar))
        finally:
            await self.engine.remove("containers", container)

    # -- frozen copies

    async def keep(self, container: str, name: str) -> None:
        """Commit a container as the store's image `name`, unless the store has that image already."""
        if await self.engine.image(f"{self.images.repository}:{name}") is None:
            await self.engine.commit(container, self.images.repository, name)

    async def commit_fork(self, box: OciBox) -> ForkImage:
        """Commit the box's container as an image, from which the children of a fork are made."""
        tag = f"{self.owner.name}-{next(self._names)}"
        await self.engine.commit(box.container, FORKS, tag)
        found = await self.engine.image(f"{FORKS}:{tag}")
        if not found:
            raise SandboxError(f"the engine lost the image {FORKS}:{tag} that it has just made")
        image = replace(box.engine_image.image, config=replace(box.engine_image.image.config, workdir=box.spec.workdir))
        return ForkImage(EngineImage(f"{FORKS}:{tag}", found["Id"], image))

    async def forget(self, box: OciBox) -> None:
        """Remove the container and, if the box was the last child of a fork, the fork's image."""
        self._boxes.pop(box.id, None)
        with contextlib.suppress(SandboxLost):  # If the engine is gone, there is nothing to remove.
            await self.engine.remove("containers", box.container)
            if box.fork_image:
                box.fork_image.users -= 1
                await self.release(box.fork_image)

    async def release(self, fork_image: ForkImage) -> None:
        if fork_image.users == 0:
            await self.engine.remove("images", fork_image.engine_image.reference)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(box.destroy() for box in list(self._boxes.values())))
        if self._opening:
            with contextlib.suppress(SandboxLost):
                await self.engine.remove("volumes", self._volume)


def _refuse_egress(egress: Egress) -> None:
    if egress.allow:
        raise RequestRefused(f"egress policy {egress.name!r}: boxes of an engine have no network; use embedded boxes")
