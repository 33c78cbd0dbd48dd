"""Small services that the contract suite starts, in a separate module since workers import them by name."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.cluster import Remote
from etude.weights.errors import CorruptVersion


@dataclass(frozen=True)
class Parcel:
    name: str
    numbers: NDArray[np.float32]


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("needs two")


class Echo:
    def __init__(self, greeting: str = "hello", *, broken: bool = False, slow: float = 0.0) -> None:
        if broken:
            raise ValueError("this one cannot be made")
        time.sleep(slow)
        self.greeting = greeting
        self.count = self.streams = 0
        self.blocking, self.freed = threading.Event(), threading.Event()

    async def greet(self, name: str, *, mark: str = "") -> str:
        return f"{self.greeting} {name}{mark}"

    async def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    async def pid(self) -> int:
        return os.getpid()

    def thread(self) -> int:
        return threading.get_ident()

    def block(self) -> bool:
        """Block until `free` is called, which needs a free event loop."""
        self.blocking.set()
        return self.freed.wait(60)

    async def free(self) -> None:
        while not self.blocking.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.freed.set()

    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    def add(self) -> int:
        self.count += 1
        return self.count

    def double(self, parcel: Parcel) -> Parcel:
        return Parcel(parcel.name, parcel.numbers * 2)

    async def declared(self) -> None:
        raise CorruptVersion("version 7: tensor w")

    def undeclared(self) -> None:
        raise KeyError("surprise")

    def unpicklable(self) -> None:
        raise Unpicklable(1, 2)

    async def cancelled(self) -> None:
        raise asyncio.CancelledError

    async def unsendable(self) -> object:
        return threading.Lock()

    async def numbers(
        self, n: int, *, fail_at: int = -1, hang_at: int = -1, cancelled_at: int = -1
    ) -> AsyncIterator[int]:
        self.streams += 1
        try:
            for i in range(n):
                if i == fail_at:
                    raise CorruptVersion(f"item {i}")
                if i == cancelled_at:
                    raise asyncio.CancelledError
                if i == hang_at:
                    await asyncio.sleep(3600)
                yield i
        finally:
            self.streams -= 1

    async def open_streams(self) -> int:
        return self.streams

    def _private(self) -> str:
        return "no"


class Relay:
    """Calls another service through a handle that it was given."""

    def __init__(self, other: Remote | None = None) -> None:
        self.other = other

    async def take(self, other: Remote) -> str:
        self.other = other
        return other.name

    async def greet(self, name: str) -> str:
        assert self.other is not None
        return f"relayed: {await self.other.call('greet', name, deadline=60)}"
