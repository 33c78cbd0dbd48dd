"""The sandbox host: the service that runs once on each node. It owns a backend and its boxes, and does what it is told.

It decides nothing about placement. Two things it does on its own: it forgets boxes that are found dead, and it destroys
all boxes when nobody has asked for its report in `orphan_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.recipe.acting import SandboxRecipe
from etude.sandbox.contract import Box, BoxSpec, Feature, Poll, Process, RequestRefused, Sandboxes, SandboxLost
from etude.sandbox.fleet.answer import answered
from etude.sandbox.fleet.events import Held
from etude.sandbox.fleet.images import Making
from etude.sandbox.fleet.policy import Policy
from etude.sandbox.fleet.pressure import Gauge
from etude.sandbox.fleet.resources import Capacity, Resources, demand_of
from etude.sandbox.open import open_sandboxes

_REQUESTS = frozenset(
    ("read_file", "write_file", "list_files", "layout", "read_tree", "write_tree", "stats", "snapshot"),
)
_IMAGES = frozenset(("add_image", "import_image", "pull_image", "build_image"))
_PROCESS = frozenset(("write", "close_stdin", "resize", "kill"))


@dataclass(frozen=True, slots=True)
class HostFacts:
    capacity: Capacity
    features: frozenset[Feature]
    held: tuple[Held, ...]
    images: dict[str, Making | None]
    """Images made here since the start, and the call that made each; None for a snapshot, which none can repeat."""


@dataclass(frozen=True, slots=True)
class Report:
    used: Resources
    ended: tuple[str, ...]
    """Boxes that were found dead, from the requested number on."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command, and the part of the box's command list that the client does not know yet."""

    result: Any
    commands: list[str]


@dataclass(slots=True)
class Lodger:
    box: Box
    owner: str
    spec: BoxSpec
    processes: dict[int, Process] = field(default_factory=dict)

    def ran(self, result: Any, known: int) -> Ran:
        return Ran(result, self.box.commands[known:])


class SandboxHost:
    def __init__(self, recipe: SandboxRecipe, root: Path, policy: Policy) -> None:
        self._recipe, self._root, self._policy = recipe, Path(root), policy
        self._backend: Sandboxes | None = None
        self._lodgers: dict[str, Lodger] = {}
        self._images: dict[str, Making | None] = {}
        self._unwanted: set[str] = set()
        """Boxes that were to be destroyed while they were still being made."""
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._cleaning: list[asyncio.Future[None]] = []
        self._ended: list[str] = []
        self._told = 0  # Number of ended boxes that the dispatcher has acknowledged, which are removed from `_ended`.
        self._heard = time.monotonic()
        self._guard: asyncio.Task[None] | None = None

    # -- the dispatcher's side

    async def open(self) -> HostFacts:
        """Starts the backend on the event loop that will use it; returns what this host is and holds already."""
        self._heard = time.monotonic()
        if self._backend is None:
            self._root.mkdir(parents=True, exist_ok=True)
            self._backend = open_sandboxes(self._recipe, self._root)
            self._gauge = Gauge(self._root)
            self._guard = asyncio.create_task(self._watch())
        cpus = self._policy.box_cpus
        held = tuple(Held(name, it.owner, demand_of(it.spec, cpus)) for name, it in self._lodgers.items())
        return HostFacts(self._gauge.capacity, self._backend.features, held, dict(self._images))

    async def report(self, seen: int) -> Report:
        """Returns the host's use and its ended boxes. `seen` is how many ended boxes the dispatcher knows of; those
        after them are sent again, in case an answer was lost."""
        self._heard = time.monotonic()
        del self._ended[: seen - self._told]
        self._told = seen
        return Report(self._gauge.look(), tuple(self._ended))

    async def create(self, box: str, owner: str, spec: BoxSpec) -> None:
        made = await self._open_backend().create(spec)
        await self._admit({box: made}, owner, spec)

    async def fork(self, parent: str, boxes: tuple[str, ...], owner: str, kill: bool) -> None:
        lodger = self._lodger(parent)
        children = await lodger.box.fork(len(boxes), kill=kill)
        await self._admit(dict(zip(boxes, children, strict=True)), owner, lodger.spec)

    async def destroy(self, box: str) -> None:
        lodger = self._lodgers.pop(box, None)
        if lodger is None:
            self._unwanted.add(box)
        else:
            await lodger.box.destroy()

    async def close(self) -> None:
        """Destroys every box and ends the backend. After that, the service can only be killed."""
        if self._guard is not None:
            self._guard.cancel()
        backend, self._backend = self._backend, None
        self._lodgers.clear()
        if backend is not None:
            await backend.close()

    # -- images

    async def make_image(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
        self._allow(method, _IMAGES)
        image: str = await getattr(self._open_backend(), method)(*args, **options)
        self._images[image] = Making(method, args, options)
        return image

    async def build_image(self, args: tuple[Any, ...], options: dict[str, Any]) -> AsyncIterator[Any]:
        """Yields the build's output as lists of lines, and the image id last."""
        said: asyncio.Queue[str] = asyncio.Queue()
        build = asyncio.ensure_future(self._open_backend().build_image(*args, say=said.put_nowait, **options))
        try:
            async for lines in _until_done(build, said):
                yield lines
            self._images[build.result()] = Making("build_image", args, options)
            yield build.result()
        finally:
            build.cancel()

    # -- the client's side

    async def ask(self, box: str, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._allow(method, _REQUESTS)
        with self._noticing(box) as lodger:
            answer = await answered(getattr(lodger.box, method)(*args, **options))
            if method == "snapshot":
                self._images.setdefault(answer, None)
            return answer

    async def exec(self, box: str, ticket: str, known: int, command: Any, options: dict[str, Any]) -> Ran:
        with self._noticing(box) as lodger:
            run = self._running[ticket] = asyncio.ensure_future(lodger.box.exec(command, **options))
            try:
                return lodger.ran(await run, known)
            finally:
                run.cancel()
                del self._running[ticket]

    async def exec_streamed(
        self, box: str, ticket: str, known: int, command: Any, options: dict[str, Any]
    ) -> AsyncIterator[list[tuple[int, bytes]] | Ran]:
        """Yields lists of (stream, bytes) with all output since the last one, and the result last."""
        with self._noticing(box) as lodger:
            came: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

            def on_output(stream: int, data: bytes) -> None:
                came.put_nowait((stream, data))

            run = asyncio.ensure_future(lodger.box.exec(command, on_output=on_output, **options))
            self._running[ticket] = run
            try:
                async for pieces in _until_done(run, came):
                    yield pieces
                yield lodger.ran(run.result(), known)
            finally:
                run.cancel()
                del self._running[ticket]

    async def cancel(self, ticket: str) -> None:
        """Returns once the box has been told, so the client's next request comes after the cancellation."""
        if run := self._running.get(ticket):
            run.cancel()
            await asyncio.wait([run])

    async def start(self, box: str, known: int, command: Any, options: dict[str, Any]) -> Ran:
        with self._noticing(box) as lodger:
            process = await lodger.box.start(command, **options)
            lodger.processes[process.id] = process
            return lodger.ran(process.id, known)

    async def ask_process(self, box: str, process: int, method: str, args: tuple[Any, ...]) -> None:
        self._allow(method, _PROCESS)
        with self._noticing(box) as lodger:
            await getattr(lodger.processes[process], method)(*args)

    async def poll(self, box: str, process: int, ticket: str, wait: float) -> Poll | None:
        """Polls a process. None if the poll was cancelled; then no output has been consumed."""
        with self._noticing(box) as lodger:
            poll = self._running[ticket] = asyncio.ensure_future(lodger.processes[process].poll(wait=wait))
            try:
                await asyncio.wait([poll])
                return None if poll.cancelled() else poll.result()
            finally:
                poll.cancel()
                del self._running[ticket]

    # -- inside

    def _open_backend(self) -> Sandboxes:
        if self._backend is None:
            raise SandboxLost("this host is closed")
        return self._backend

    def _lodger(self, box: str) -> Lodger:
        if box not in self._lodgers:
            raise SandboxLost(f"box {box} is not on this host any more")
        return self._lodgers[box]

    def _allow(self, method: str, methods: frozenset[str]) -> None:
        if method not in methods:
            raise RequestRefused(f"no request {method!r}; there are {', '.join(sorted(methods))}")

    @contextlib.contextmanager
    def _noticing(self, name: str) -> Iterator[Lodger]:
        """If the box is found dead, forgets it and reports it as ended."""
        lodger = self._lodger(name)
        try:
            yield lodger
        except SandboxLost:
            if self._lodgers.pop(name, None) is not None:
                self._ended.append(name)
                self._cleaning = [task for task in self._cleaning if not task.done()]
                self._cleaning.append(asyncio.ensure_future(lodger.box.destroy()))
            raise

    async def _admit(self, boxes: dict[str, Box], owner: str, spec: BoxSpec) -> None:
        unwanted = self._unwanted & set(boxes)
        self._unwanted -= unwanted
        if unwanted or self._backend is None:
            await asyncio.gather(*(box.destroy() for box in boxes.values()))
            raise SandboxLost(f"{', '.join(boxes)} were given up while they were being made")
        for name, box in boxes.items():
            self._lodgers[name] = Lodger(box, owner, spec)

    async def _watch(self) -> None:
        while True:
            left = self._heard + self._policy.orphan_seconds - time.monotonic()
            if left <= 0:
                boxes = list(self._lodgers)
                self._ended += boxes
                await asyncio.gather(*(self._lodgers.pop(box).box.destroy() for box in boxes))
            await asyncio.sleep(max(left, self._policy.beat_seconds))


async def _until_done(work: asyncio.Future[Any], pieces: asyncio.Queue[Any]) -> AsyncIterator[list[Any]]:
    """Yields what the work says while it runs, in as few lists as the receiver's pace allows."""
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
