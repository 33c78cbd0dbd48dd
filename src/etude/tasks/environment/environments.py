"""Prepares environments: builds, pulls or imports an image, seals it, and reads its workspace.

The type of an error says whose fault it is: TaskError for a mistake of the task's author, SandboxError for a fault of
the infrastructure.
"""

from __future__ import annotations

import asyncio
import copy
import re
from pathlib import Path

from etude.harness.workspaces.result_cache import Memo
from etude.sandbox.contract import NO_EGRESS, Egress, ImageError, RequestRefused, Sandboxes
from etude.tasks.environment.host_index import HostIndexes
from etude.tasks.environment.prepared import Prepared, read_prepared
from etude.tasks.environment.source import Kind, Source, needles_of_task, source_of
from etude.tasks.environment.stored_facts import Proofs, store_image, stored_image
from etude.tasks.seal import Needles, SealReport, is_leftover, scan_files, scan_image, seal
from etude.tasks.seal.base_scan import Base, HostIndex, list_base, scan_base
from etude.tasks.task import Task, TaskError

_FETCHED = re.compile(r":\d+: FROM ", re.IGNORECASE)
"""Matches a builder's error in a FROM instruction, which may be the registry's fault and no mistake in the Dockerfile.
"""


class Environments:
    """Prepares environments and caches them. There is one per process, shared by the grader and the rollouts."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        folder: Path | None = None,
        *,
        egress: Egress = NO_EGRESS,
        host_indexes: HostIndexes | None = None,
    ) -> None:
        """`folder` stores results for later processes. `egress` is what a Dockerfile's steps may reach. `host_indexes`
        stores an index of all text lines in the host's base (the system folders that boxes show), which takes a minute
        to build. Without `host_indexes`, the search for leaks covers only those files of the base that may be versions
        of a file that the solution changes."""
        self.sandboxes = sandboxes
        self._folder = folder
        self.proofs = Proofs(folder, self._state_of_host) if folder else None
        self._egress = egress
        self._host_indexes = host_indexes
        self._prepared: Memo[str, Prepared] = Memo(8192)
        self._bases: Memo[None, Base] = Memo(1)
        self._host_index: Memo[None, HostIndex | None] = Memo(1)

    def for_one_task(self) -> Environments:
        """Return a copy that caches one workspace, because those of many tasks together do not fit in memory."""
        one = copy.copy(self)
        one._prepared = Memo(1)
        return one

    async def prepare(self, task: Task) -> Prepared:
        """Return what agents and gradings of this task start from. Concurrent callers wait for the same preparation."""
        source = await asyncio.to_thread(source_of, task)

        async def make() -> tuple[Prepared, bool]:
            return await self._make(task, source), True

        return await self._prepared.get(source.digest, make)

    async def prove(self, task: Task) -> SealReport:
        """Search for the task's solution and hidden tests in everything that its agent can read. The gate takes a
        report without findings as proof that nothing leaks."""
        prepared, needles = await self._patterns_of(task)
        if prepared.bare:
            own = await asyncio.to_thread(scan_files, prepared.files, needles)
        else:
            own = await scan_image(self.sandboxes, prepared.image, needles, removed=prepared.removed)
        if not prepared.on_base:
            return own
        base = await self._bases.get(None, self._list_base)
        host_index = await self._host_index.get(None, self._load_host_index)
        return own.combined_with(await scan_base(self.sandboxes, base, needles, host_index))

    async def base_shows_solution(self, task: Task) -> bool:
        """Return whether the host's base (the system folders that boxes show) has a version of a file that the solution
        changes, with text of the solution in it. This is fast for any task. `prove` is slower: it also searches the
        task's own files and, given an index, the whole base."""
        prepared, needles = await self._patterns_of(task)
        if not prepared.on_base or not needles.file_versions:
            return False
        return bool((await scan_base(self.sandboxes, await self._bases.get(None, self._list_base), needles)).findings)

    async def _patterns_of(self, task: Task) -> tuple[Prepared, Needles]:
        prepared = await self.prepare(task)
        return prepared, await asyncio.to_thread(needles_of_task, task, prepared.files)

    async def _state_of_host(self) -> str:
        return (await self._bases.get(None, self._list_base)).digest

    async def _list_base(self) -> tuple[Base, bool]:
        return await list_base(self.sandboxes), True

    async def _load_host_index(self) -> tuple[HostIndex | None, bool]:
        if self._host_indexes is None:
            return None, True
        return await self._host_indexes.of(self.sandboxes, await self._bases.get(None, self._list_base)), True

    async def _make(self, task: Task, source: Source) -> Prepared:
        if source.kind is Kind.FILES and not any(map(is_leftover, source.files)):
            return await self._bare(task, source)
        if self._folder and (known := await asyncio.to_thread(stored_image, self._folder, source.digest)):
            try:
                return await read_prepared(self.sandboxes, known)
            except (RequestRefused, ImageError):
                pass  # The image is no longer in the store: make it again.
        image = await self._image(task, source)
        try:
            sealed = await seal(self.sandboxes, image, source.workdir)
            prepared = await read_prepared(self.sandboxes, sealed)
        except TaskError as error:
            raise TaskError(f"{task.directory / 'environment'}: {error}") from error
        if self._folder:
            await asyncio.to_thread(store_image, self._folder, source.digest, sealed)
        return prepared

    async def _bare(self, task: Task, source: Source) -> Prepared:
        """Prepare a task that consists only of files over the host's base. It needs no box and no sealing: the files
        hold no version control, caches or bytecode. Whether the base shows the solution is checked by `prove`."""
        image = await self._add(task, source)
        # The backend marks these files executable when it is given contents without modes.
        scripts = frozenset(path for path, data in source.files.items() if data.startswith(b"#!"))
        return Prepared(image, source.workdir, source.files, scripts, bare=True, on_base=True)

    async def _image(self, task: Task, source: Source) -> str:
        match source.kind:
            case Kind.FILES:
                return await self._add(task, source)
            case Kind.PULLED:
                return await self.sandboxes.pull_image(source.reference)
            case Kind.ARCHIVE:
                try:
                    return await self.sandboxes.import_image(source.place)
                except ImageError as error:
                    raise TaskError(f"{source.place}: {error}") from error
            case Kind.DOCKERFILE:
                try:
                    return await self.sandboxes.build_image(source.place, egress=self._egress)
                except ImageError as error:
                    if _FETCHED.search(str(error)):
                        raise
                    raise TaskError(str(error)) from error

    async def _add(self, task: Task, source: Source) -> str:
        try:
            return await self.sandboxes.add_image(dict(source.files), workdir=source.workdir)
        except RequestRefused as error:
            raise TaskError(f"{task.directory}: {error}") from error
