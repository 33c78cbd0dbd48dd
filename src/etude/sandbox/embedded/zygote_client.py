"""Client of the zygote process: starts the zygote, requests boxes from it, and is notified when they end. There is one
client per backend instance."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from etude.sandbox.contract import BoxBusy, DiskFull, RequestRefused, SandboxError, SandboxLost, SandboxUnavailable
from etude.sandbox.embedded.probe import advice
from etude.sandbox.inside.wire import MAX_ORDER, printable
from etude.sandbox.inside.zygote_root import ZygoteSettings
from etude.sandbox.light_python import light_command

_START_SECONDS = 20.0


class ZygoteClient:
    def __init__(self, settings: ZygoteSettings) -> None:
        """Start the zygote and wait until it is ready, about 60 ms. Raise SandboxUnavailable, which names what the host
        lacks."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                light_command("etude.sandbox.inside.zygote", "main", theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={},
                start_new_session=True,
            )
        self.alive = True
        self.gone: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._ended: dict[str, Callable[[], None]] = {}
        self._done: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pending_sends: set[asyncio.Task[None]] = set()
        self._tickets = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control = ours
        ours.settimeout(_START_SECONDS)
        try:
            ours.send(json.dumps(vars(settings)).encode())
            answer = json.loads(ours.recv(MAX_ORDER) or b'{"ready": false, "error": "it died", "step": "start"}')
        except (OSError, ValueError) as error:
            answer = {"ready": False, "error": str(error), "step": "start"}
        if not answer["ready"]:
            self.end()
            raise SandboxUnavailable(advice(answer["step"], answer["error"]))
        ours.setblocking(False)
        self.own_ids: bool = answer["own_ids"]
        """Whether each box has host ids of its own."""

    # -- messages from the zygote

    def attach(self) -> None:
        """Receive the zygote's messages on the running event loop. Call this again whenever the loop has changed: a
        backend may serve several calls of asyncio.run() one after the other, although each of its boxes works within
        one call only."""
        loop = asyncio.get_running_loop()
        if self.alive and self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._control.fileno())
            self._loop = loop
            loop.add_reader(self._control.fileno(), self._receive)

    def _receive(self) -> None:
        while self.alive:
            try:
                data = self._control.recv(MAX_ORDER)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._zygote_died()
                return
            message = json.loads(data)
            if "gone" in message:
                self._box_ended(message["gone"], message)
            else:
                _resolve(self._done.pop(message["done"], None), message)

    def _box_ended(self, name: str, message: dict[str, Any]) -> None:
        if ended := self._ended.pop(name, None):
            ended()
        _resolve(self.gone.pop(name, None), message)

    def _zygote_died(self) -> None:
        self.end()
        for name in list(self.gone):
            self._box_ended(name, {"gone": name})
        for future in self._done.values():
            _resolve(future, {"error": "the zygote died", "kind": "lost"})
        self._done.clear()

    async def _send(self, message: dict[str, Any], numbers: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        if len(data) > MAX_ORDER:
            raise RequestRefused(f"{len(data)} bytes for one box; at most {MAX_ORDER}: give it fewer variables in env")
        while True:
            if not self.alive:
                raise SandboxLost("the zygote has died; make the box again")
            try:
                socket.send_fds(self._control, [data], numbers)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    _allow_more_in_flight()
                else:
                    self._zygote_died()

    # -- requests

    async def create(
        self, message: dict[str, Any], passed: Sequence[int], ended: Callable[[], None]
    ) -> asyncio.Future[dict[str, Any]]:
        """Request a box. `passed` are descriptors that the zygote receives, in this order: the box's end of its socket
        to this process; for a box with egress (the message has `ports`), the socket over which the zygote sends the
        listening sockets of the box's network; the files through which a process enters the box's cgroups.

        Return a future that resolves when no process of the box is left. At that time `ended` is called in any case,
        even if the future's event loop is closed."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.gone[message["id"]] = future
        try:
            await self._send({"op": "create", **message}, passed)
        except BaseException:
            self.gone.pop(message["id"], None)
            raise
        self._ended[message["id"]] = ended
        return future

    async def destroy(self, box: str) -> None:
        await self._send({"op": "destroy", "id": box})

    async def copy(self, sources: list[str], target: str, *, cell: str = "") -> str:
        """Merge the overlay folders `sources` (paths as the zygote sees them) into the folder `target`. If `cell` is
        given, the zygote first makes this cell (a folder for what a box writes), which contains `target`. Return the
        digest of the content."""
        answer = await self._ask({"op": "copy", "sources": sources, "target": target, "cell": cell})
        if "error" in answer:
            kinds = {"lost": SandboxLost, "disk_full": DiskFull, "refused": RequestRefused, "busy": BoxBusy}
            why = printable(answer["error"])
            raise kinds.get(answer["kind"], SandboxError)(f"copying what a box has written: {why}")
        return str(answer["digest"])

    async def untouched(self, box: str, cell: str, layers: list[str]) -> bool:
        """Whether the box has written nothing to its cell (the folder for what it writes) on top of `layers`."""
        return bool((await self._ask({"op": "untouched", "id": box, "cell": cell, "layers": layers})).get("untouched"))

    async def forbid_writes(self, box: str) -> bool:
        """Let no process of the box change its files until `allow_writes`, or until the box has another root. Return
        False if a process has a file open for writing, or mapped shared and writable."""
        answer = await self._ask({"op": "forbid_writes", "id": box, "forbidden": True})
        if answer.get("kind") == "lost":
            raise SandboxLost(f"box {box} ended while it was copied: {answer['error']}")
        return "error" not in answer

    async def allow_writes(self, box: str) -> None:
        """Let the box's processes change its files again, after `forbid_writes`. If the box has ended, nothing is
        done."""
        await self._ask({"op": "forbid_writes", "id": box, "forbidden": False})

    async def restack(self, box: str, cell: str, layers: list[str], shared: list[str]) -> str:
        """Make what the box has written read-only, and move the box to a new cell (the folder for what it writes) on
        top of `layers`. Return "", or the reason why the box's processes prevent this: for example, they map the files
        `shared` as shared memory, and the topmost of `layers` holds one of these."""
        answer = await self._ask({"op": "restack", "id": box, "cell": cell, "layers": layers, "shared": shared})
        if answer.get("kind") == "lost":
            raise SandboxLost(f"box {box} ended while it was forked: {answer['error']}")
        if answer.get("kind") == "refused":
            raise RequestRefused(f"box {box} has replaced a folder that each box needs: {printable(answer['error'])}")
        if answer.get("kind") == "failed":
            raise SandboxError(f"box {box} could not be sealed, and goes on as it was: {answer['error']}")
        return printable(answer.get("error", ""))

    async def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self._tickets += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._done[self._tickets] = future
        await self._send({**message, "ticket": self._tickets})
        return await future

    def release(self, cell: str) -> None:
        """Have the zygote remove a cell (the folder for what a box wrote). If the zygote is dead, the cell is gone
        already."""
        message = {"op": "release", "cell": cell}
        try:
            self._control.send(json.dumps(message).encode())
        except BlockingIOError:
            task = asyncio.ensure_future(self._send_quietly(message))
            self._pending_sends.add(task)
            task.add_done_callback(self._pending_sends.discard)
        except OSError:
            return

    async def _send_quietly(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(SandboxLost):
            await self._send(message)

    def end(self) -> None:
        self.hang_up()
        self.reap()

    def hang_up(self) -> None:
        """Close the socket, which ends the zygote and every box. Call it in the event loop's thread: requests that
        still wait there for room in the socket then raise SandboxLost."""
        self.alive = False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._control.fileno())
        self._control.close()

    def reap(self) -> None:
        deadline = time.monotonic() + 5
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                self.process.kill()
            time.sleep(0.001)


def _allow_more_in_flight() -> None:
    """Raise this process's limit on open descriptors to the maximum. The kernel lets the user have as many descriptors
    under way in sockets as this limit allows, and boxes that run as the same user may have used them up. If the limit
    cannot grow, raise SandboxError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        raise SandboxError(
            f"a box has {soft} descriptors under way in sockets, as many as your user may have: destroy that box, or "
            "raise the hard limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _resolve(future: asyncio.Future[dict[str, Any]] | None, value: dict[str, Any]) -> None:
    """Set the future's result, unless it is done or its event loop is closed."""
    if future is None or future.done() or future.get_loop().is_closed():
        return
    future.set_result(value)
