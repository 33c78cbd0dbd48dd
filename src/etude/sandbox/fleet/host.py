"""The sandbox host: a service that runs once on each node. It owns a sandbox backend and its boxes, and serves the
dispatcher and the clients.

It decides nothing about placement. On its own, it does only two things: it forgets boxes that it finds dead, and it
destroys all boxes if the dispatcher has not asked for its report for `orphan_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from etude.recipe.acting import SandboxRecipe
from etude.sandbox.contract import (
    Box,
    BoxSpec,
    Capability,
    Feature,
    Poll,
    Process,
    RequestRefused,
    Sandboxes,
    SandboxLost,
)
from etude.sandbox.fleet.events import HeldBox
from etude.sandbox.fleet.images import ImageCall
from etude.sandbox.fleet.load_meter import LoadMeter
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.remote_errors import wrap_os_errors
from etude.sandbox.fleet.resources import Capacity, Resources, demand_of
from etude.sandbox.open import open_sandboxes

T = TypeVar("T")
_REQUESTS = frozenset(
    ("read_file", "write_file", "list_files", "layout", "read_tree", "write_tree", "stats", "snapshot"),
)
"""Methods of a box that clients may call through `ask`."""
_IMAGES = frozenset(("add_image", "import_image", "pull_image", "build_image"))
"""Methods of the backend that make an image."""
_PROCESS = frozenset(("write", "close_stdin", "resize", "kill"))
"""Methods of a background command that clients may call through `ask_process`."""


@dataclass(frozen=True, slots=True)
class HostInventory:
    """What a host reports when it joins a fleet: its size, its features, its walls (what boxes cannot reach or do not
    share), and the boxes and images that it already has."""

    capacity: Capacity
    features: frozenset[Feature]
    capabilities: frozenset[Capability]
    held: tuple[HeldBox, ...]
    images: dict[str, ImageCall | None]
    """Maps the id of each image that this host has made since its service started to the backend call that made the
    image. The value is None for a snapshot, which cannot be made again."""


@dataclass(frozen=True, slots=True)
class Report:
    used: Resources
    """Resource use of the whole machine, by boxes and everything else."""
    ended: tuple[str, ...]
    """Boxes that were found dead, and whose end the dispatcher does not know of yet."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The result of a command, and the entries that have been added to `Box.commands` since the client last asked."""

    result: Any
    commands: list[str]


@dataclass(slots=True)
class HostedBox:
    box: Box
    owner: str
    spec: BoxSpec
    processes: dict[int, Process] = field(default_factory=dict)

    def outcome(self, result: Any, known: int) -> CommandOutcome:
        """Return `result` with the entries of `Box.commands` that the client lacks: all after the first `known`."""
        return CommandOutcome(result, self.box.commands[known:])


class SandboxHost:
    def __init__(self, recipe: SandboxRecipe, root: Path, policy: Policy) -> None:
        self._recipe, self._root, self._policy = recipe, Path(root), policy
        self._backend: Sandboxes | None = None
        self._boxes: dict[str, HostedBox] = {}
        self._images: dict[str, ImageCall | None] = {}
        self._unwanted: set[str] = set()
        """Ids of boxes for which `destroy` was called before they were made. They are destroyed once made."""
        self._running: dict[str, asyncio.Task[Any]] = {}
        """Running commands and polls, by the ticket with which a client can cancel them."""
        self._cleaning: list[asyncio.Future[None]] = []
        self._ended: list[str] = []
        """Boxes that were found dead and that the dispatcher has not acknowledged."""
        self._acknowledged = 0
        """Number of ended boxes that the dispatcher has acknowledged so far. They are no longer in `_ended`."""
        self._last_asked = time.monotonic()
        self._orphan_watch: asyncio.Task[None] | None = None

    # -- the dispatcher's side

    async def open(self) -> HostInventory:
        """Start the backend, if it does not run yet. Return the host's capacity, features, boxes and images."""
        self._last_asked = time.monotonic()
        if self._backend is None:
            self._root.mkdir(parents=True, exist_ok=True)
            self._backend = open_sandboxes(self._recipe, self._root)
            self._load_meter = LoadMeter(self._root)
            self._orphan_watch = asyncio.create_task(self._destroy_orphans())
        cpus = self._policy.box_cpus
        held = tuple(HeldBox(name, it.owner, demand_of(it.spec, cpus)) for name, it in self._boxes.items())
        features, capabilities = self._backend.features, self._backend.capabilities
        return HostInventory(self._load_meter.capacity, features, capabilities, held, dict(self._images))

    async def report(self, seen: int) -> Report:
        """Return the resource use, and the boxes found dead except the first `seen`, which the dispatcher knows of. A
        box is reported again until `seen` includes it, since an answer may be lost."""
        self._last_asked = time.monotonic()
        del self._ended[: seen - self._acknowledged]
        self._acknowledged = seen
        return Report(self._load_meter.measure(), tuple(self._ended))

    async def create(self, box: str, owner: str, spec: BoxSpec) -> None:
        made = await self._open_backend().create(spec)
        await self._admit({box: made}, owner, spec)

    async def fork(self, parent: str, boxes: tuple[str, ...], owner: str, kill: bool) -> None:
        """Fork the box `parent` into children with the ids `boxes`. With `kill`, end its processes first."""
        hosted = self._hosted_box(parent)
        children = await hosted.box.fork(len(boxes), kill=kill)
        await self._admit(dict(zip(boxes, children, strict=True)), owner, hosted.spec)

    async def destroy(self, box: str) -> None:
        """Destroy a box, now or as soon as it is made."""
        hosted = self._boxes.pop(box, None)
        if hosted is None:
            self._unwanted.add(box)
        else:
            await hosted.box.destroy()

    async def close(self) -> None:
        """Destroy every box and close the backend. Later requests raise SandboxLost; the caller kills the service."""
        if self._orphan_watch is not None:
            self._orphan_watch.cancel()
        backend, self._backend = self._backend, None
        self._boxes.clear()
        if backend is not None:
            await backend.close()

    # -- images

    async def make_image(self, call: ImageCall) -> str:
        self._allow(call.method, _IMAGES)
        image: str = await getattr(self._open_backend(), call.method)(*call.args, **call.options)
        self._images[image] = call
        return image

    async def build_image(self, call: ImageCall) -> AsyncIterator[Any]:
        """Build an image. Yield the build's output as lists of lines, and the image id last."""
        output: asyncio.Queue[str] = asyncio.Queue()
        work = self._open_backend().build_image(*call.args, say=output.put_nowait, **call.options)
        build = asyncio.ensure_future(work)
        try:
            async for lines in _until_done(build, output):
                yield lines
            self._images[build.result()] = call
            yield build.result()
        finally:
            build.cancel()

    # -- the client's side

    async def ask(self, box: str, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a method of a box, and return its result or a WrappedError."""
        self._allow(method, _REQUESTS)
        with self._reporting_loss(box) as hosted:
            answer = await wrap_os_errors(getattr(hosted.box, method)(*args, **options))
            if method == "snapshot":
                self._images.setdefault(answer, None)
            return answer

    async def exec(self, box: str, ticket: str, known: int, command: Any, options: dict[str, Any]) -> CommandOutcome:
        """Run a command; `cancel` ends it by its `ticket`. The client knows `known` entries of `Box.commands`."""
        with (
            self._reporting_loss(box) as hosted,
            self._cancellable(ticket, hosted.box.exec(command, **options)) as run,
        ):
            return hosted.outcome(await run, known)

    async def exec_streamed(
        self, box: str, ticket: str, known: int, command: Any, options: dict[str, Any]
    ) -> AsyncIterator[list[tuple[int, bytes]] | CommandOutcome]:
        """Like `exec`, but yield the output as lists of (stream, bytes) as it arrives, and the CommandOutcome last."""
        with self._reporting_loss(box) as hosted:
            came: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

            def on_output(stream: int, data: bytes) -> None:
                came.put_nowait((stream, data))

            with self._cancellable(ticket, hosted.box.exec(command, on_output=on_output, **options)) as run:
                async for pieces in _until_done(run, came):
                    yield pieces
                yield hosted.outcome(run.result(), known)

    async def cancel(self, ticket: str) -> None:
        """Cancel a command or poll and wait until it has ended, so that the client's next request comes after it."""
        if run := self._running.get(ticket):
            run.cancel()
            await asyncio.wait([run])

    async def start(self, box: str, known: int, command: Any, options: dict[str, Any]) -> CommandOutcome:
        """Start a background command. The outcome's result is the command's id. `known` is as for `exec`."""
        with self._reporting_loss(box) as hosted:
            process = await hosted.box.start(command, **options)
            hosted.processes[process.id] = process
            return hosted.outcome(process.id, known)

    async def ask_process(self, box: str, process: int, method: str, args: tuple[Any, ...]) -> None:
        self._allow(method, _PROCESS)
        with self._reporting_loss(box) as hosted:
            await getattr(hosted.processes[process], method)(*args)

    async def poll(self, box: str, process: int, ticket: str, wait: float) -> Poll | None:
        """Poll a background command. Return None if the poll was cancelled; then no output has been consumed."""
        with (
            self._reporting_loss(box) as hosted,
            self._cancellable(ticket, hosted.processes[process].poll(wait=wait)) as poll,
        ):
            await asyncio.wait([poll])
            return None if poll.cancelled() else poll.result()

    # -- inside

    def _open_backend(self) -> Sandboxes:
        if self._backend is None:
            raise SandboxLost("this host is closed")
        return self._backend

    def _hosted_box(self, box: str) -> HostedBox:
        if box not in self._boxes:
            raise SandboxLost(f"box {box} is not on this host any more")
        return self._boxes[box]

    def _allow(self, method: str, methods: frozenset[str]) -> None:
        if method not in methods:
            raise RequestRefused(f"no request {method!r}; there are {', '.join(sorted(methods))}")

    @contextlib.contextmanager
    def _cancellable(self, ticket: str, work: Coroutine[Any, Any, T]) -> Iterator[asyncio.Task[T]]:
        """Run `work` as a task during the block. `cancel` can end it by its ticket."""
        task = self._running[ticket] = asyncio.ensure_future(work)
        try:
            yield task
        finally:
            task.cancel()
            del self._running[ticket]

    @contextlib.contextmanager
    def _reporting_loss(self, name: str) -> Iterator[HostedBox]:
        """Yield the record of a box. If the block raises SandboxLost, forget the box and report it as ended."""
        hosted = self._hosted_box(name)
        try:
            yield hosted
        except SandboxLost:
            if self._boxes.pop(name, None) is not None:
                self._ended.append(name)
                self._cleaning = [task for task in self._cleaning if not task.done()]
                self._cleaning.append(asyncio.ensure_future(hosted.box.destroy()))
            raise

    async def _admit(self, boxes: dict[str, Box], owner: str, spec: BoxSpec) -> None:
        """Record new boxes. If `destroy` was called for one of them meanwhile, or the host was closed, destroy all of
        them and raise SandboxLost."""
        unwanted = self._unwanted & set(boxes)
        self._unwanted -= unwanted
        if unwanted or self._backend is None:
            await asyncio.gather(*(box.destroy() for box in boxes.values()))
            raise SandboxLost(f"{', '.join(boxes)} were given up while they were being made")
        for name, box in boxes.items():
            self._boxes[name] = HostedBox(box, owner, spec)

    async def _destroy_orphans(self) -> None:
        """Destroy all boxes whenever the dispatcher has not asked for a report for `orphan_seconds`."""
        while True:
            left = self._last_asked + self._policy.orphan_seconds - time.monotonic()
            if left <= 0:
                boxes = list(self._boxes)
                self._ended += boxes
                await asyncio.gather(*(self._boxes.pop(box).box.destroy() for box in boxes))
            await asyncio.sleep(max(left, self._policy.beat_seconds))


async def _until_done(work: asyncio.Future[Any], pieces: asyncio.Queue[Any]) -> AsyncIterator[list[Any]]:
    """Yield lists of the items put into `pieces`, until `work` is done. A slow receiver gets fewer and longer lists."""
    while True:
        getting = asyncio.ensure_future(pieces.get())
        await asyncio.wait((work, getting), return_when=asyncio.FIRST_COMPLETED)
        if not getting.done():
            getting.cancel()
            return
        batch = [getting.result()]
        while not pieces.empty():
            batch.append(pieces.get_nowait())
        yield batch
