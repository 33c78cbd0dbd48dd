"""The embedded backend: boxes from namespaces and overlayfs, without daemon, Docker or root.

Invariant: a box is one process tree under its own pid 1 and one cell of written files, both held by the zygote. When
the box, the backend, or the owner's process ends, in whatever way, both are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.recipe.acting import SandboxRecipe
from etude.sandbox.channel import Channel
from etude.sandbox.contract import (
    Box,
    BoxBusy,
    BoxSpec,
    ExecResult,
    Feature,
    Limits,
    RequestRefused,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from etude.sandbox.host_base import PATH, build_host_base
from etude.sandbox.inside.init import USERS
from etude.sandbox.inside.rootfs import World
from etude.sandbox.probe import Host, advice, probe_host
from etude.sandbox.store import MAX_LAYERS, ImageStore, check_workdir
from etude.sandbox.zygote_client import ZygoteClient

ENVIRONMENT = {
    "PATH": PATH,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PAGER": "cat",
}
_ANSWER_SECONDS = 30.0
"""How long pid 1 may take for anything but a command before the box counts as lost."""


def open_sandboxes(recipe: SandboxRecipe, root: Path) -> EmbeddedSandboxes:
    """The backend that the recipe names, over images kept in `root`; SandboxUnavailable says what the host lacks."""
    return {"embedded": EmbeddedSandboxes}[recipe.backend](root)


def limits_of(recipe: SandboxRecipe) -> Limits:
    return Limits(memory_mb=recipe.memory_mb, processes=recipe.processes, cpu_seconds=math.ceil(recipe.command_seconds))


@dataclass(slots=True)
class Seal:
    """A frozen copy below the children of a fork; it goes with the last of them."""

    path: str
    users: int = 0
    layer: str = ""
    """Its name in the store, once a snapshot of a child has needed it there."""


class EmbeddedSandboxes:
    def __init__(self, root: Path, *, memory_cells: bool | None = None) -> None:
        """Starts the zygote (about 60 ms). `memory_cells` is chosen by the probe unless given."""
        self.host: Host = probe_host()
        self.memory_cells = self.host.memory_cells if memory_cells is None else memory_cells
        outer = self.host.outer_ids
        self._store = ImageStore(Path(root).absolute(), outer[1] if outer else None)
        self._boxes: dict[str, EmbeddedBox] = {}
        self._names = itertools.count(1)
        self._closed = False
        try:
            self._zygote = self._start_zygote()
        except BaseException:
            self._store.close()
            raise

    def _start_zygote(self) -> ZygoteClient:
        store, scratch = self._store.root, self._store.scratch
        base = build_host_base(store, self.host.outer_ids)
        for name in ("stage", "cells", "seals"):
            (scratch / name).mkdir(exist_ok=True)
        skeleton = f"store/{base.skeleton}"
        world = World(
            str(store), str(scratch / "stage"), skeleton, base.binds, self.host.outer_ids, memory=self.memory_cells
        )
        return ZygoteClient(world)

    @property
    def features(self) -> frozenset[Feature]:
        always = {Feature.FORK, Feature.SNAPSHOT, Feature.NO_NETWORK, Feature.MEMORY_LIMIT, Feature.PROCESS_LIMIT}
        return frozenset(always | ({Feature.SECOND_USER} if self.host.outer_ids else set()))

    # -- images

    async def add_image(self, files: dict[str, bytes], *, base: str = "host", workdir: str = "/work") -> str:
        return await asyncio.to_thread(self._store.add, files, base, workdir)

    # -- boxes

    async def create(self, spec: BoxSpec) -> Box:
        return await self._create(spec, [f"store/layers/{name}" for name in self._store.layers(spec.image)], [])

    async def _create(self, spec: BoxSpec, layers: list[str], seals: list[Seal]) -> EmbeddedBox:
        check_workdir(spec.workdir)
        if len(layers) > MAX_LAYERS:
            raise RequestRefused(
                f"a box on {len(layers)} layers; at most {MAX_LAYERS} are possible: snapshot fewer times"
            )
        zygote = self._running_zygote()
        number = next(self._names)
        name = spec.name or f"box-{number}"
        home = self.folder("cells")
        message = {
            "id": f"{self._store.owner}-{number}",
            "cell": f"{home}/{number}",
            "layers": layers,
            "workdir": spec.workdir,
            "limits": asdict(spec.limits),
            "env": {**ENVIRONMENT, **dict(spec.env)},
        }
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                gone = await zygote.create(message, theirs)
        except BaseException:
            ours.close()
            raise
        channel = Channel(name)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        box = EmbeddedBox(self, zygote, spec, message, channel, gone, seals)
        self._boxes[box.id] = box
        for seal in seals:
            seal.users += 1
        try:
            await box.wait_until_ready()
        except BaseException:
            await box.destroy()
            raise
        return box

    def folder(self, kind: str) -> str:
        """Where the zygote sees this backend's cells or seals."""
        return kind if self.memory_cells else f"store/owners/{self._store.owner}/{kind}"

    def _running_zygote(self) -> ZygoteClient:
        if self._closed:
            raise SandboxError("this backend is closed; open another")
        if not self._zygote.alive:
            self._zygote = self._start_zygote()
        self._zygote.attach()
        return self._zygote

    # -- frozen copies

    def new_seal(self) -> Seal:
        return Seal(f"{self.folder('seals')}/{next(self._names)}")

    async def keep(self, zygote: ZygoteClient, source: str) -> str:
        """Copies a frozen folder into the store; returns the layer's name."""
        fresh = f"keep-{next(self._names)}"
        digest = await zygote.seal(source, f"store/owners/{self._store.owner}/{fresh}")
        layer = f"{digest}{'r' if self.host.outer_ids else ''}"
        await asyncio.to_thread(self._store.adopt, self._store.scratch / fresh, layer)
        return layer

    def record(self, layers: list[str]) -> str:
        return self._store.record(layers)

    async def forget(self, box: EmbeddedBox) -> None:
        self._boxes.pop(box.id, None)
        for seal in box.seals:
            seal.users -= 1
            if seal.users == 0:
                await box.zygote.release(seal.path)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(box.destroy() for box in list(self._boxes.values())))
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        if self._zygote.alive:
            self._zygote.end()
        self._store.close()


class EmbeddedBox:
    """One box. It belongs to the event loop in which it was made."""

    def __init__(
        self,
        backend: EmbeddedSandboxes,
        zygote: ZygoteClient,
        spec: BoxSpec,
        message: dict[str, Any],
        channel: Channel,
        gone: asyncio.Future[dict[str, Any]],
        seals: list[Seal],
    ) -> None:
        self.spec, self.zygote, self.seals = spec, zygote, seals
        self._backend, self._message, self._channel, self._gone = backend, message, channel, gone
        self._forgotten = False
        # A box whose zygote has died must see the end of its socket, whatever became of its death signal.
        gone.add_done_callback(lambda _: channel.close() if channel.ready.done() else None)

    @property
    def id(self) -> str:
        return str(self._message["id"])

    async def wait_until_ready(self) -> None:
        waiting = {self._channel.ready, self._gone}
        done, _ = await asyncio.wait(waiting, timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise SandboxLost(f"box {self.id} was not ready in {_ANSWER_SECONDS:.0f} s")
        # A box that failed says why on its own socket; what the zygote says may come first.
        refused = self._gone.done() and "error" in self._gone.result()
        answer = self._gone.result() if refused else await self._channel.ready
        if answer.get("ready"):
            return
        step, error = answer.get("step", "lost"), answer.get("error", "its process ended while it was being made")
        if step in ("lost", "cell", "box"):
            raise SandboxLost(f"box {self.id}: {error}")
        raise SandboxUnavailable(advice(step, error))

    async def exec(
        self,
        command: list[str] | str,
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: bytes = b"",
        user: str = "agent",
    ) -> ExecResult:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        if user not in USERS or (user == "grader" and Feature.SECOND_USER not in self._backend.features):
            raise RequestRefused(f"user {user!r}: this backend has agent{self._grader_or_not()}")
        if not argv or timeout <= 0:
            raise RequestRefused(f"a command of at least one word and a positive timeout, not {argv!r} in {timeout} s")
        workdir = self.spec.workdir
        header = {
            "op": "exec",
            "argv": argv,
            "cwd": cwd if cwd is None or cwd.startswith("/") else f"{workdir}/{cwd}",
            "env": {"HOME": f"/home/{user}", "USER": user, **(env or {})},
            "timeout": timeout,
            "user": user,
        }
        answer, body = await self._channel.request(header, stdin, patience=timeout + _ANSWER_SECONDS)
        return ExecResult(
            code=answer["code"],
            stdout=body[: answer["split"]],
            stderr=body[answer["split"] :],
            seconds=answer["seconds"],
            timed_out=answer["limit"] == "time",
            truncated=answer["truncated"],
            limit=answer["limit"],
        )

    def _grader_or_not(self) -> str:
        return (
            " and grader" if Feature.SECOND_USER in self._backend.features else " only (run by root, it has grader too)"
        )

    async def read_file(self, path: str, *, max_bytes: int = 1_000_000) -> bytes:
        _, body = await self._ask({"op": "read", "path": path, "max_bytes": max_bytes})
        return body

    async def write_file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        await self._ask({"op": "write", "path": path, "executable": executable}, data)

    async def list_files(self, path: str = ".") -> list[str]:
        _, body = await self._ask({"op": "list", "path": path})
        return body.decode("utf-8", "surrogateescape").split("\0") if body else []

    async def _ask(self, header: dict[str, Any], payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        return await self._channel.request(header, payload, patience=_ANSWER_SECONDS)

    # -- frozen copies

    @contextlib.asynccontextmanager
    async def _frozen(self, *, kill: bool) -> Any:
        """Nothing of the box runs inside this block; what lives goes on after it."""
        answer, _ = await self._ask({"op": "freeze", "kill": kill})
        if answer["writers"]:
            raise BoxBusy(f"box {self.id} is being written to by {'; '.join(answer['writers'])}: wait, or kill=True")
        try:
            yield
        finally:
            with contextlib.suppress(SandboxLost):
                await self._ask({"op": "thaw"})

    async def snapshot(self) -> str:
        async with self._frozen(kill=False):
            top = await self._backend.keep(self.zygote, f"{self._message['cell']}/upper")
        layers = [top]
        for seal in self.seals:
            seal.layer = seal.layer or await self._backend.keep(self.zygote, seal.path)
            layers.append(seal.layer)
        return self._backend.record([*layers, *self._stored_layers()])

    def _stored_layers(self) -> list[str]:
        below: list[str] = self._message["layers"][len(self.seals) :]
        return [path.rpartition("/")[2] for path in below]

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        if count < 1:
            raise RequestRefused(f"fork into {count} boxes; at least 1 is needed")
        seal = self._backend.new_seal()
        async with self._frozen(kill=kill):
            await self.zygote.seal(f"{self._message['cell']}/upper", seal.path)
        layers = [seal.path, *self._message["layers"]]
        seal.users += 1  # This call's own hold, until the children have theirs.
        try:
            makes = (self._backend._create(self.spec, layers, [seal, *self.seals]) for _ in range(count))
            made = await asyncio.gather(*makes, return_exceptions=True)
        finally:
            seal.users -= 1
            if seal.users == 0:
                await self.zygote.release(seal.path)
        failed = [outcome for outcome in made if isinstance(outcome, BaseException)]
        children: list[Box] = [outcome for outcome in made if isinstance(outcome, EmbeddedBox)]
        if failed:
            await asyncio.gather(*(child.destroy() for child in children))
            raise failed[0]
        return children

    # -- the end

    async def destroy(self) -> None:
        self._channel.close()
        if not self._gone.done() and self.zygote.alive:
            with contextlib.suppress(SandboxLost):
                await self.zygote.destroy(self.id)
                await asyncio.wait({self._gone}, timeout=_ANSWER_SECONDS)
        if not self._forgotten:
            self._forgotten = True
            await self._backend.forget(self)
