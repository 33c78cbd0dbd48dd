"""Seals a built image, from which agents and gradings then start: removes history, caches and copies of the package
that the task is about.

Sealing happens before any agent starts. It runs in a box without network, as root if boxes have that user. `scan`
checks afterwards that nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from etude.sandbox.contract import Box, BoxSpec, Sandboxes
from etude.tasks.fresh_box import fresh_box
from etude.tasks.seal.copies import editable_folders, find_copies
from etude.tasks.seal.history import find_history, squash
from etude.tasks.seal.leftovers import Removed, find_leftovers, folders_above
from etude.tasks.seal.root import LIMITS, Root, owner_of, run
from etude.tasks.task import TaskError

_AT_ONCE = 100_000
"""Maximum bytes of the arguments of one `rm` command."""


@dataclass(frozen=True, slots=True)
class Sealed:
    image: str
    workdir: str
    removed: tuple[Removed, ...]


async def seal(sandboxes: Sandboxes, image: str, workdir: str = "") -> Sealed:
    """Seal an image in a box and return the result. An empty `workdir` stands for the image's own. Raises TaskError for
    an image that cannot be sealed."""
    async with fresh_box(sandboxes, BoxSpec(image, workdir=workdir, limits=LIMITS, name="seal")) as box:
        workdir = await _workdir(box, workdir)
        removed = await _clean(box, sandboxes, workdir)
        return Sealed(await box.snapshot() if removed else image, workdir, tuple(removed))


async def _clean(box: Box, sandboxes: Sandboxes, workdir: str) -> list[Removed]:
    root = await Root.of(box, owner_of(sandboxes))
    paths = await root.files()
    history = await find_history(root, paths, workdir)
    tracked = history.tracked if history else None
    stores = list(history.stores) if history else []
    plain = _without(paths, stores)
    editable = await editable_folders(root, plain, workdir)
    removed = stores + find_leftovers(plain, workdir, tracked, editable)
    removed += await find_copies(root, _without(plain, removed), workdir, tracked)
    for batch in _batches(item.path for item in removed):
        await run(box, ["rm", "-rf", "--", *batch], root.user)
    if history:
        await squash(root, history, sandboxes)
    return removed


def _without(paths: Iterable[str], removed: Iterable[Removed]) -> list[str]:
    gone = {item.path for item in removed}
    return [path for path in paths if path not in gone and gone.isdisjoint(folders_above(path))]


async def _workdir(box: Box, wanted: str) -> str:
    found = wanted or (await run(box, ["/bin/sh", "-c", "pwd -P"], "", cwd=".")).decode("utf-8", "surrogateescape")
    found = found.rstrip("\n").rstrip("/")
    if not found:
        raise TaskError("the workspace would be the whole image: set environment.workdir, or WORKDIR in the Dockerfile")
    return found


def _batches(paths: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    room = _AT_ONCE
    for path in paths:
        room -= len(path.encode("utf-8", "surrogateescape")) + 9
        if batch and room < 0:
            yield batch
            batch, room = [], _AT_ONCE
        batch.append(path)
    if batch:
        yield batch
