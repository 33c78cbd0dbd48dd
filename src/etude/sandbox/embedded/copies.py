"""Forks and snapshots. A snapshot copies what a box has written into layers of the store.

For a fork, a box is *restacked*: its cell (folder of written files) is sealed (made read-only) and becomes a lower
layer of the box and its children; the box gets a new cell. This takes a few milliseconds, whatever the size. Live
processes are moved to the new root (inside/moving.py). If one cannot be moved, the box keeps its cell, and its children
get a copy of the cell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from etude.sandbox.contract import Box, BoxBusy, RequestRefused, SandboxLost
from etude.sandbox.embedded.box import EmbeddedBox
from etude.sandbox.embedded.cells import Cell, drop, hold, layers_of

T = TypeVar("T")
MAX_STACKED_LAYERS = 32
"""With more overlay layers, the first access to a file becomes slow, and at some number the mount is refused. If a fork
would reach this number, it copies all cells (folders that the box has written) into one, which takes long."""


class CopyableBox(EmbeddedBox):
    async def snapshot(self) -> str:
        top, below = await _uncancelled(_copied_cell(self), lambda kept: drop(kept[1]))
        layers = [top]
        try:
            for cell in below:
                cell.layer = cell.layer or await self.backend.store_cell(self.zygote, cell)
                layers.append(cell.layer)
        finally:
            drop(below)
        config = replace(self.image.config, workdir=self.spec.workdir)
        image = replace(self.image, layers=(*layers, *self.image.layers), config=config)
        return await asyncio.to_thread(self.backend.store.record, image)

    async def fork(self, count: int = 1, *, kill: bool = False) -> list[Box]:
        if count < 1:
            raise RequestRefused(f"fork into {count} boxes; at least 1 is needed")
        given = self.commands
        below = await _uncancelled(_seal_unwritable(self, kill=kill), drop)
        try:
            makes = (self.backend.create_over(self.spec, self.image, below) for _ in range(count))
            made = await asyncio.gather(*makes, return_exceptions=True)
        finally:
            drop(below)
        children = [outcome for outcome in made if not isinstance(outcome, BaseException)]
        failed = [outcome for outcome in made if isinstance(outcome, BaseException)]
        if failed:
            await asyncio.gather(*(child.destroy() for child in children))
            raise failed[0]
        for child in children:
            child.inherit(given)
        return list[Box](children)


async def _copied_cell(box: EmbeddedBox) -> tuple[str, list[Cell]]:
    """Copy the box's newest cell (folder of written files) into a layer of the store. Return the layer and the box's
    older cells. These stay in existence until the caller drops them (`drop`)."""
    async with _unwritable(box, kill=False):
        below = box.cells[1:]
        hold(below)
        try:
            return await box.backend.store_cell(box.zygote, box.cells[0]), below
        except BaseException:
            drop(below)
            raise


async def _uncancelled(work: Coroutine[Any, Any, T], undo: Callable[[T], object]) -> T:
    """Run `work` to its end even if the caller is cancelled: half-done, it would leave a box in an unknown state. If
    the caller was cancelled, call `undo` with the result."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled() and not task.exception():
            undo(task.result())
        raise


@contextlib.asynccontextmanager
async def _unwritable(box: EmbeddedBox, *, kill: bool) -> AsyncIterator[bool]:
    """Freeze the box during the block, so that nothing can change its files. Yields whether no process is alive. Raises
    BoxBusy if a process has a file open for writing.

    Two measures are taken: all processes are held, and the files are made read-only. One of them is enough. The first
    fails for a process that a debugger already holds, the second if a process has a shared writable mapping of a file.
    If both fail, BoxBusy is raised."""
    async with box.frozen(kill=kill) as frozen, box.sealing:
        if frozen.still:
            yield True
            return
        cell = box.cells[0]
        if not await box.zygote.forbid_writes(box.id) and frozen.free:
            raise BoxBusy(
                f"box {box.id} is being written to, and not all stand still ({frozen.free}): wait, or kill=True"
            )
        try:
            yield False
        finally:
            if box.cells[0] is cell:  # Otherwise it has another root, which is writable.
                with contextlib.suppress(SandboxLost):
                    await box.zygote.allow_writes(box.id)


async def _seal_unwritable(box: EmbeddedBox, *, kill: bool) -> list[Cell]:
    async with _unwritable(box, kill=kill) as still:
        return await _seal(box, still=still)


async def _seal(box: EmbeddedBox, *, still: bool) -> list[Cell]:
    """Make the box's newest cell (folder of written files) read-only for good; if processes prevent that, copy it
    instead. Return the cells that the box's children use as lower layers. They stay in existence until the caller drops
    them (`drop`). `still`: no process of the box is alive."""
    below = list(box.cells)
    if await box.zygote.untouched(box.id, below[0].path, layers_of(below[1:], box.lease.paths)):
        hold(below[1:])
        return below[1:]
    hold(below)
    try:
        deep = len(below) + len(box.lease.layers) >= MAX_STACKED_LAYERS
        if deep:
            below = await _merge_cells(box, below, len(below))
        if not await _restack(box, below, still=still) and not deep:
            below = await _merge_cells(box, below, 1)
    except BaseException:
        drop(below)
        raise
    return below


async def _merge_cells(box: EmbeddedBox, below: list[Cell], count: int) -> list[Cell]:
    """Copy the first `count` of the cells `below` into one new cell. Return the new cell and the remaining ones. The
    caller holds the new cell in place of those copied, which are dropped."""
    merged = box.backend.new_cell(box.zygote)
    hold([merged])
    try:
        await box.zygote.copy([cell.upper for cell in below[:count]], merged.upper, cell=merged.path)
    except BaseException:
        drop([merged])
        raise
    drop(below[:count])
    return [merged, *below[count:]]


async def _restack(box: EmbeddedBox, below: list[Cell], *, still: bool) -> bool:
    """Give the box a new cell (folder for what it writes), with the cells `below` as read-only layers under it. Return
    False if living processes prevent that."""
    shared = [] if still else await box.rehearse()
    if shared is None:
        return False
    fresh = [box.backend.new_cell(box.zygote), *below]
    hold(fresh)
    try:
        busy = await box.zygote.restack(box.id, fresh[0].path, layers_of(below, box.lease.paths), shared)
    except BaseException:
        drop(fresh)
        raise
    if busy:
        drop(fresh)
        if still:
            raise BoxBusy(f"box {box.id} is being written to ({busy}): wait, or kill=True")
        return False
    box.cells, old = fresh, box.cells
    box.cgroup.raise_limit_by_files()
    drop(old)
    return True
