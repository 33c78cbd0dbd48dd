"""The owner's side of the zygote: starts it, asks for boxes, learns when they have ended. One per backend instance."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from etude.sandbox.contract import DiskFull, SandboxError, SandboxLost, SandboxUnavailable
from etude.sandbox.inside.rootfs import World
from etude.sandbox.probe import advice

_START_SECONDS = 20.0
_MESSAGE = 1 << 17
# Stub packages: the zygote loads its own few files and none of the project's dependencies.
_BOOT = """
import sys, types
for name, folder in zip(("etude", "etude.sandbox"), sys.argv[2:4]):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [folder]
from etude.sandbox.inside.zygote import main
main(int(sys.argv[1]))
"""


class ZygoteClient:
    def __init__(self, world: World) -> None:
        """Blocks until the zygote stands (about 60 ms); SandboxUnavailable names what the host lacks."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here = Path(__file__).parent
        packages = [str(here.parent), str(here)]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _BOOT, str(theirs.fileno()), *packages],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={},
                start_new_session=True,
            )
        self.alive = True
        self.gone: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._sealed: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tickets = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control = ours
        ours.settimeout(_START_SECONDS)
        try:
            ours.send(json.dumps(asdict(world)).encode())
            answer = json.loads(ours.recv(_MESSAGE) or b'{"ready": false, "error": "it died", "step": "start"}')
        except (OSError, ValueError) as error:
            answer = {"ready": False, "error": str(error), "step": "start"}
        if not answer["ready"]:
            self.end()
            raise SandboxUnavailable(advice(answer["step"], answer["error"]))
        ours.setblocking(False)

    # -- the event loop's part

    def attach(self) -> None:
        """Listens on the running loop; a backend outlives asyncio.run(), its boxes do not."""
        loop = asyncio.get_running_loop()
        if self.alive and self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._control.fileno())
            self._loop = loop
            loop.add_reader(self._control.fileno(), self._receive)

    def _receive(self) -> None:
        while self.alive:
            try:
                data = self._control.recv(_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._died()
                return
            message = json.loads(data)
            if "gone" in message:
                _resolve(self.gone.pop(message["gone"], None), message)
            else:
                _resolve(self._sealed.pop(message["sealed"], None), message)

    def _died(self) -> None:
        self.end()
        for name, future in self.gone.items():
            _resolve(future, {"gone": name})
        for ticket, future in self._sealed.items():
            _resolve(future, {"sealed": ticket, "error": "the zygote died", "kind": "lost"})
        self.gone.clear()
        self._sealed.clear()

    async def _send(self, message: dict[str, Any], numbers: tuple[int, ...] = ()) -> None:
        data = json.dumps(message).encode()
        while True:
            if not self.alive:
                raise SandboxLost("the zygote has died; make the box again")
            try:
                socket.send_fds(self._control, [data], numbers)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError:
                self._died()

    # -- requests

    async def create(self, message: dict[str, Any], box_end: socket.socket) -> asyncio.Future[dict[str, Any]]:
        """Asks for a box; the future ends when the box has ended and nothing is left of it."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.gone[message["id"]] = future
        try:
            await self._send({"op": "create", **message}, (box_end.fileno(),))
        except BaseException:
            self.gone.pop(message["id"], None)
            raise
        return future

    async def destroy(self, box: str) -> None:
        await self._send({"op": "destroy", "id": box})

    async def seal(self, source: str, target: str) -> str:
        """Copies a folder of the zygote's world; returns the digest of its content."""
        self._tickets += 1
        ticket = self._tickets
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._sealed[ticket] = future
        await self._send({"op": "seal", "ticket": ticket, "source": source, "target": target})
        answer = await future
        if "error" in answer:
            kinds: dict[str, type[SandboxError]] = {"lost": SandboxLost, "disk_full": DiskFull}
            raise kinds.get(answer["kind"], SandboxError)(f"sealing {source}: {answer['error']}")
        return str(answer["digest"])

    async def release(self, path: str) -> None:
        with contextlib.suppress(SandboxLost):
            await self._send({"op": "release", "path": path})

    def end(self) -> None:
        """Closes the socket, which ends the zygote and every box, and collects it."""
        self.alive = False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._control.fileno())
        self._control.close()
        deadline = time.monotonic() + 5
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                self.process.kill()
            time.sleep(0.001)


def _resolve(future: asyncio.Future[dict[str, Any]] | None, value: dict[str, Any]) -> None:
    if future is None or future.done() or future.get_loop().is_closed():
        return
    future.set_result(value)
