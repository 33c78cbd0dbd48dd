"""Builds the stages of a Dockerfile, one instruction at a time. For an instruction that changes files, the builder
makes a box, works in it, and takes a snapshot.

A step's cache key covers everything that goes into the step: the files it starts from, what is run or copied, and what
the command can see. A change rebuilds only that step and the steps on top of it.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from etude.sandbox.contract import (
    NO_EGRESS,
    Box,
    BoxSpec,
    BuildFailed,
    DiskFull,
    Egress,
    ImageError,
    Limits,
    RequestRefused,
    SandboxError,
    Sandboxes,
)
from etude.sandbox.images.build.cache import BuildCache
from etude.sandbox.images.build.context import Context
from etude.sandbox.images.build.copying import copy_into, make_folder, select_from_box
from etude.sandbox.images.build.instructions import Action, Arg, Copy, Remark, Run, Stage, Workdir
from etude.sandbox.images.build.members import Source, source_of_text
from etude.sandbox.images.build.ownership import find_owner, parse_mode
from etude.sandbox.images.build.plan import PROXIES, Plan
from etude.sandbox.images.build.running import command_of, run_in
from etude.sandbox.images.build.settings import StageState, apply_setting, declare
from etude.sandbox.images.build.spending import Spending
from etude.sandbox.images.build.unpacking import unpack_archive
from etude.sandbox.images.image import EMPTY, HOST, Image, ImageConfig
from etude.sandbox.images.oci import Say
from etude.sandbox.images.store import ImageStore

ROOT = "root"
_HOST_ERRORS = {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EIO,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
}
"""errno values of failures that are the host's fault. Other file errors come from paths that the Dockerfile gives."""
_MIN_FREE_BYTES = 16 << 20


@dataclass(slots=True)
class Builder:
    sandboxes: Sandboxes
    store: ImageStore
    context: Context
    plan: Plan
    given: dict[str, str]
    """Values for ARG from the caller, by name."""
    egress: Egress
    limits: Limits
    seconds: float
    """Maximum duration of one step, in seconds."""
    say: Say
    spending: Spending = field(default_factory=Spending)
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of commands, which override the Dockerfile's. They are part of neither the image nor the
    cache keys."""
    done: dict[int, Image] = field(default_factory=dict)
    """Images of the finished stages, by stage index."""
    _cache: BuildCache = field(init=False)
    _step: int = 0

    def __post_init__(self) -> None:
        self._cache = BuildCache(self.store)

    @property
    def steps(self) -> int:
        return sum(1 + len(stage.instructions) for stage in self.plan.needed)

    async def build(self) -> Image:
        for stage in self.plan.needed:
            with self._errors_located(stage.line, stage.text):
                state = StageState(await self._base(stage), self.plan.dockerfile.escape)
            for instruction in stage.instructions:
                with self._errors_located(instruction.line, instruction.text):
                    state = await self._apply(state, stage, instruction.action)
            self.done[stage.index] = state.image
        return self.done[self.plan.needed[-1].index]

    @contextmanager
    def _errors_located(self, line: int, text: str) -> Iterator[None]:
        """Report the instruction as a step, and add its file and line to errors raised in this block."""
        self._step += 1
        self.say(f"{self._step}/{self.steps} {text}")
        where = f"{self.plan.dockerfile.file}:{line}: {text}"
        try:
            self.spending.check()
            yield
        except (SandboxError, ValueError, OSError) as error:
            raise self._with_blame(error, where) from error

    def _with_blame(self, error: Exception, where: str) -> Exception:
        """Return the exception to raise for `error`: BuildFailed if the Dockerfile is to blame, else an error of the
        host. If the host's disk is full, the host is to blame, unless a step exceeded its own disk limit."""
        text, limit = f"{where}: {error}", error.limit if isinstance(error, BuildFailed) else ""
        if limit != "disk" and shutil.disk_usage(self.store.root).free < _MIN_FREE_BYTES:
            return DiskFull(f"{text} (the disk of {self.store.root} is full)")
        if isinstance(error, DiskFull):
            return BuildFailed(text, "disk")
        if isinstance(error, OSError) and error.errno in _HOST_ERRORS:
            return SandboxError(text)
        if isinstance(error, ImageError | RequestRefused | ValueError | OSError):
            return BuildFailed(text, limit)
        return error

    async def _base(self, stage: Stage) -> Image:
        below = self.plan.base_stage(stage)
        return self.done[below.index] if below else await self._image(self.plan.bases[stage.index])

    async def _image(self, name: str) -> Image:
        """Find an image by name: in this store first, then in a registry."""
        if name == "scratch":
            return Image(EMPTY, (), ImageConfig(workdir="/", user=ROOT))
        try:
            return self.store.image(name)
        except RequestRefused:
            return self.store.image(await self.sandboxes.pull_image(name))

    async def _apply(self, state: StageState, stage: Stage, action: Action) -> StageState:
        match action:
            case Run():
                return state.with_files_of(await self._run(state, action))
            case Copy():
                return state.with_files_of(await self._copy(state, stage, action))
            case Workdir(path):
                return await self._enter(state, path)
            case Arg():
                return declare(state, action, self.given, self.plan.defaults)
            case Remark():
                return state
        return apply_setting(state, action)

    # -- instructions that change files

    async def _run(self, state: StageState, run: Run) -> Image:
        command, stdin = command_of(state, run)
        env = state.variables
        config = state.config
        key = self._cache.key(
            state.image,
            run=command,
            stdin=stdin.decode("utf-8", "surrogateescape"),
            env=env,
            user=config.user,
            workdir=config.workdir,
            egress=asdict(replace(self.egress, name="", proxy="")),
        )
        if found := self._cached(key):
            return found
        if run.cache_mounts:
            self.say("    --mount=type=cache: shared with no other build; what is left in it is part of the image")
        env = {**{name: value for name, value in self.given.items() if name in PROXIES}, **env}
        async with self._box(state.image, config.user, self.egress) as box:
            seconds = min(self.seconds, max(0.1, self.spending.seconds_left))
            await run_in(box, command, stdin, {**env, **dict(self.env)}, self.limits, seconds, self.say)
            return await self._snapshot(box, key)

    async def _copy(self, state: StageState, stage: Stage, copy: Copy) -> Image:
        target = state.target(state.expand(copy.target))
        patterns = [state.expand(source) for source in copy.sources]
        mode, owner = parse_mode(state.expand(copy.mode)), state.expand(copy.owner)
        with ExitStack() as open_files:
            facts: dict[str, Any]
            if copy.stage:
                origin = await self._origin(copy.stage, stage)
                sources: list[Source] = []
                facts = {"from": [origin.base, origin.layers, patterns]}
            else:
                origin = None
                sources = await asyncio.to_thread(self._from_context, state, copy, patterns, open_files)
                facts = {"sources": await asyncio.to_thread(lambda: [source.digest() for source in sources])}
            key = self._cache.key(state.image, target=target, owner=owner, mode=mode, **facts)
            if found := self._cached(key):
                return found
            if origin is not None:
                async with self._box(origin, ROOT) as box:
                    for pattern in patterns:
                        sources += await select_from_box(box, pattern, open_files)
            async with self._box(state.image, ROOT) as box:
                default_owner = await find_owner(box, "agent" if state.image.base == HOST else ROOT)
                wanted = await find_owner(box, owner) if owner else None
                await copy_into(box, sources, target, owner=wanted, mode=mode, default_owner=default_owner)
                return await self._snapshot(box, key)

    def _from_context(self, state: StageState, copy: Copy, patterns: list[str], open_files: ExitStack) -> list[Source]:
        sources = [source for pattern in patterns for source in self.context.select(pattern)]
        if copy.unpack:
            sources = [unpack_archive(source, open_files, self.store.scratch) for source in sources]
        for heredoc in copy.heredocs:
            text = heredoc.text if heredoc.literal else state.expand_document(heredoc.text)
            sources.append(source_of_text(heredoc.name, text))
        return sources

    async def _origin(self, name: str, stage: Stage) -> Image:
        below = self.plan.dockerfile.stage_before(name, stage.index)
        return self.done[below.index] if below else await self._image(name)

    async def _enter(self, state: StageState, path: str) -> StageState:
        """Apply WORKDIR: make the folder if it is missing, owned by the stage's user."""
        folder = state.folder(state.expand(path))
        entered = state.with_config(workdir=folder)
        key = self._cache.key(state.image, workdir=folder, user=state.config.user)
        if found := self._cached(key):
            return entered.with_files_of(found)
        async with self._box(state.image, ROOT) as box:
            if await make_folder(box, folder, await find_owner(box, state.config.user)):
                return entered.with_files_of(await self._snapshot(box, key))
        self._cache.keep(key, self._record(state.image, ROOT))
        return entered

    # -- boxes and their snapshots

    def _cached(self, key: str) -> Image | None:
        found = self._cache.find(key)
        if found is not None:
            self.say("    as before")
        return found

    def _record(self, image: Image, user: str) -> str:
        """Record an image with the files of `image` and only the settings that a step's box needs. Return its id."""
        return self.store.record(Image(image.base, image.layers, ImageConfig(workdir=image.config.workdir, user=user)))

    @asynccontextmanager
    async def _box(self, image: Image, user: str, egress: Egress = NO_EGRESS) -> AsyncIterator[Box]:
        """Yield a new box for one build step. Its resource use is added to `spending` when it is destroyed."""
        limits = self.spending.bounded(self.limits)
        spec = BoxSpec(self._record(image, user), limits=limits, egress=egress, name="build")
        box = await self.sandboxes.create(spec)
        try:
            try:
                yield box
            finally:
                self.spending.add(await box.stats())
        finally:
            await box.destroy()

    async def _snapshot(self, box: Box, key: str) -> Image:
        name = await box.snapshot()
        self._cache.keep(key, name)
        return self.store.image(name)
