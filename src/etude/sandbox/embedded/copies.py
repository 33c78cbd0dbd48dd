"""Forks and snapshots: what a box has written is sealed, and others, and the box itself, go on on top of it.

A box in which nothing runs is *restacked*: its cell becomes a layer below, the box gets a new cell, whatever the size
in a few milliseconds. One with living processes keeps its cell, since they may stand in its folders: children get a
copy.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from etude.sandbox.contract import Box, BoxBusy, RequestRefused
from etude.sandbox.embedded.cells import Cell, drop, hold, layers_of

if TYPE_CHECKING:
    from etude.sandbox.embedded.box import EmbeddedBox

DEEPEST = 32
"""Layers of an overlay: with more, the first look at a file becomes slow, and at some number a mount is refused. A fork
that would reach it melts all cells of the box into one, which takes as long as copying them."""


async def snapshot(box: EmbeddedBox) -> str:
    async with box.frozen(kill=False):
        top = await box.backend.keep(box.zygote, box.cells[0])
    layers = [top]
    for cell in box.cells[1:]:
        cell.layer = cell.layer or await box.backend.keep(box.zygote, cell)
        layers.append(cell.layer)
    config = replace(box.image.config, workdir=box.spec.workdir)
    image = replace(box.image, layers=(*layers, *box.image.layers), config=config)
    return await asyncio.to_thread(box.backend.store.record, image)


async def fork(box: EmbeddedBox, count: int, *, kill: bool) -> list[Box]:
    if count < 1:
        raise RequestRefused(f"fork into {count} boxes; at least 1 is needed")
    given = box.commands
    async with box.frozen(kill=kill) as still:
        below = await _seal(box, still=still)
    try:
        makes = (box.backend.create_over(box.spec, box.image, below) for _ in range(count))
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


async def _seal(box: EmbeddedBox, *, still: bool) -> list[Cell]:
    """The cells that children stand on, held for the caller."""
    below = list(box.cells)
    if await box.zygote.untouched(box.id, below[0].path, layers_of(below[1:], box.lease.paths)):
        hold(below[1:])
        return below[1:]
    hold(below)
    deep = len(below) + len(box.lease.layers) >= DEEPEST
    try:
        if deep or not still:
            melted = await _melt(box, below if deep else below[:1])
            kept = [] if deep else below[1:]
            drop([cell for cell in below if cell not in kept])
            below = [melted, *kept]
        if still:
            await _restack(box, below)
    except BaseException:
        drop(below)
        raise
    return below


async def _melt(box: EmbeddedBox, cells: list[Cell]) -> Cell:
    """One new cell with the sum of some."""
    melted = box.backend.new_cell(box.zygote)
    hold([melted])
    try:
        await box.zygote.copy([cell.upper for cell in cells], melted.upper, cell=melted.path)
    except BaseException:
        drop([melted])
        raise
    return melted


async def _restack(box: EmbeddedBox, below: list[Cell]) -> None:
    fresh = [box.backend.new_cell(box.zygote), *below]
    hold(fresh)
    try:
        answer = await box.zygote.restack(box.id, fresh[0].path, layers_of(below, box.lease.paths))
    except BaseException:
        drop(fresh)
        raise
    if answer:
        drop(fresh)
        raise BoxBusy(f"box {box.id} is being written to ({answer}): wait, or kill=True")
    box.cells, old = fresh, box.cells
    drop(old)
