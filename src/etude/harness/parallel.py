"""Runs the calls of one turn in parallel where they cannot collide, with the results of running them in order.

Invariant: a call begins only when every earlier call it could collide with is done. So the files, and what each call
sees of them, are the same as if the calls had run in order. A call that may end the run reaches everything, so no later
call has begun when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from etude.harness.paths import within

Access: TypeAlias = Literal["none", "read", "write", "all"]
""""none": touches no file. "read", "write": a file or folder. "all": may touch anything, not only files."""
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
    return within(one.path, other.path) or within(other.path, one.path)


async def in_order(
    reaches: Sequence[Reach], carry_out: Callable[[int], Awaitable[T]], ends: Callable[[T], bool]
) -> AsyncGenerator[T, None]:
    """Yield the results in call order, up to the first that `ends` the run; `carry_out` gets each call's index. If the
    iteration ends early, even by an exception, no call is left running."""
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
