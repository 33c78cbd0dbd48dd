"""Helpers that the cases of the contract suite share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from etude.sandbox import Box, BoxSpec, ExecResult, Feature, Limits, Process, Sandboxes

Make = Callable[[], Sandboxes]
FILES = {"calc.py": b"def add(a, b):\n    return a + b\n", "pkg/__init__.py": b"", "run.sh": b"#!/bin/sh\necho ran\n"}
SMALL = Limits(memory_mb=96, processes=20, cpu_seconds=30, file_mb=4, disk_mb=16, output_bytes=1000)
PATIENCE = 60.0
"""Deadline in seconds for what should happen at once. It only ends what hangs; it is no performance requirement."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop of its own, in which the boxes of its `sandboxes` end as well."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def whole() -> None:
            try:
                await test(*args, **kwargs)
            finally:
                if "sandboxes" in kwargs:
                    await kwargs["sandboxes"].close()

        asyncio.run(whole())

    return run


@contextlib.asynccontextmanager
async def opened(make: Make) -> AsyncIterator[tuple[Sandboxes, str]]:
    sandboxes = make()
    try:
        yield sandboxes, await sandboxes.add_image(FILES)
    finally:
        await sandboxes.close()


def in_a_box(limits: Limits = SMALL, *, needs: Feature | None = None) -> Callable[..., Callable[..., None]]:
    """Gives a case what it asks for of its backend: `sandboxes`, `image` with FILES, and a `box` of it. A suite class
    with an attribute `lend` lends one backend to all of these; cases about its start or end ask for `make`."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        parameters = dict(inspect.signature(test).parameters)
        given = [name for name in ("sandboxes", "image", "box") if parameters.pop(name, None)]

        @functools.wraps(test)
        def run(self: object, make: Make, **more: Any) -> None:
            async def whole() -> None:
                async with opened(getattr(self, "lend", make)) as (sandboxes, image):
                    if needs is not None and needs not in sandboxes.features:
                        pytest.skip(f"this backend has no {needs}")
                    box = await sandboxes.create(BoxSpec(image, limits=limits)) if "box" in given else None
                    have = {"sandboxes": sandboxes, "image": image, "box": box}
                    await test(self, **{name: have[name] for name in given}, **more)

            asyncio.run(whole())

        asked = inspect.Parameter("make", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        own, *others = parameters.values()
        run.__signature__ = inspect.Signature([own, asked, *others])  # type: ignore[attr-defined]
        return run

    return decorate


async def under_way(box: Box, command: str, *, timeout: float = 60, user: str = "") -> asyncio.Task[ExecResult]:
    """Start a command and return once it has begun, which its shell says on stderr."""
    begun = asyncio.Event()
    command = f"echo begun >&2; {command}"
    running = asyncio.create_task(box.exec(command, timeout=timeout, user=user, on_output=lambda *_: begun.set()))
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    return running


async def output_until(process: Process, wanted: bytes, patience: float = PATIENCE) -> bytes:
    """Read the process's output until it contains `wanted`; return all of it, which may include bytes after that."""
    heard, deadline = b"", time.monotonic() + patience
    while wanted not in heard:
        left = deadline - time.monotonic()
        look = await process.poll(wait=max(0.0, left))
        heard += look.output
        assert wanted in heard or (look.code is None and left > 0), (heard, look)
    return heard


async def end_of(process: Process, patience: float = PATIENCE) -> tuple[int, bytes]:
    """Wait for the process to end; return its exit code and the rest of its output."""
    heard, deadline = b"", time.monotonic() + patience
    while True:
        look = await process.poll(wait=max(0.0, deadline - time.monotonic()))
        heard += look.output
        if look.code is not None:
            return look.code, heard
        assert time.monotonic() < deadline, heard


async def processes_in(box: Box) -> list[str]:
    """Names of the box's processes, seen from inside, without pid 1 and those of this command."""
    seen = await box.exec(
        "for p in /proc/[0-9]*; do read -r line <$p/comm && echo $line; done 2>/dev/null", timeout=PATIENCE
    )
    names = seen.stdout.decode().split("\n")[:-1]
    return [name for name in names if name not in ("init", "sh")]


async def empties(box: Box) -> bool:
    """Whether the box has no processes before long. Cancelling a command does not wait for its processes to end."""
    deadline = time.monotonic() + PATIENCE
    while await processes_in(box):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def ok(result: ExecResult) -> str:
    assert result.code == 0, result
    return result.stdout.decode()
