"""The calls of one turn at the same time, where they cannot collide, with the results of one after the other.

Invariant: a call begins when every earlier call that it could collide with is done. So the files are what they would be
had the calls run in order, and so is what each call sees of them. What may end a run reaches everything, so nothing
behind it has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

Access: TypeAlias = Literal["none", "read", "write", "all"]
"""none: touches no file. read, write: a file or a folder. all: may touch anything, also what is no file."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reach:
    """What a call may touch."""

    access: Access = "all"
    path: str = "."
    """"." is the whole workspace."""


def collide(one: Reach, other: Reach) -> bool:
    if "none" in (one.access, other.access):
        return False
    if "all" in (one.access, other.access):
        return True
    if one.access == other.access == "read":
        return False
    return _within(one.path, other.path) or _within(other.path, one.path)


def _within(path: str, folder: str) -> bool:
    return folder == "." or path == folder or path.startswith(f"{folder}/")


async def in_order(
    reaches: Sequence[Reach], carry_out: Callable[[int], Awaitable[T]], ends: Callable[[T], bool]
) -> AsyncGenerator[T, None]:
    """The results, in the order of the calls, up to the first that `ends` the run; `carry_out` is given each call's
    place. Whatever ends the iteration early, a failure included, leaves nothing running behind."""
    if len(reaches) == 1:
        yield await carry_out(0)
        return
    tasks: list[asyncio.Task[T | None]] = []

    async def after(place: int, earlier: Sequence[asyncio.Task[T | None]]) -> T | None:
        for task in earlier:
            result = await asyncio.shield(task)
            if result is None or ends(result):
                return None
        return await carry_out(place)

    try:
        for place, reach in enumerate(reaches):
            earlier = [task for task, before in zip(tasks, reaches, strict=False) if collide(before, reach)]
            tasks.append(asyncio.create_task(after(place, earlier)))
        for task in tasks:
            result = await task
            if result is None:
                return
            yield result
            if ends(result):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
