"""Runs the calls of one turn in parallel if they cannot conflict, with the same results as if they ran in order.

Invariant: a call begins only after every earlier call that it could conflict with has ended. So the files, and what
each call reads, are the same as if the calls had run one after the other. A call that may end the run conflicts with
all others, so no later call has begun when it ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from etude.harness.paths import within

Access: TypeAlias = Literal["none", "read", "write", "all"]
"""How a call uses files. "none": it uses none. "read" or "write": it reads or writes one file or folder. "all": it may
use anything, not only files."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallScope:
    access: Access = "all"
    path: str = "."
    """File or folder that the call reads or writes; "." is the whole workspace."""


def collide(one: CallScope, other: CallScope) -> bool:
    if "none" in (one.access, other.access):
        return False
    if "all" in (one.access, other.access):
        return True
    if one.access == other.access == "read":
        return False
    return within(one.path, other.path) or within(other.path, one.path)


async def run_in_call_order(
    scopes: Sequence[CallScope], carry_out: Callable[[int], Awaitable[T]], ends: Callable[[T], bool]
) -> AsyncGenerator[T, None]:
    """Run a turn's calls, in parallel if possible, and yield their results in call order, up to the first for which
    `ends` returns true. `carry_out` runs the call with a given index. If the iteration ends early, even by an
    exception, the remaining calls are cancelled."""
    if len(scopes) == 1:
        yield await carry_out(0)
        return
    tasks: list[asyncio.Task[T | None]] = []

    async def after(index: int, earlier: Sequence[asyncio.Task[T | None]]) -> T | None:
        for task in earlier:
            result = await asyncio.shield(task)
            if result is None or ends(result):
                return None
        return await carry_out(index)

    try:
        for index, scope in enumerate(scopes):
            earlier = [task for task, before in zip(tasks, scopes, strict=False) if collide(before, scope)]
            tasks.append(asyncio.create_task(after(index, earlier)))
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
