"""A bounded LRU cache of results that depend only on their key, shared by concurrent callers.

If several callers ask for the same key at the same time, only one computes the result. A computation may mark its
result as not cacheable; only its own caller then gets this result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class MemoStats:
    hits: int = 0
    misses: int = 0
    refused: int = 0
    """Misses whose result was not cached, because the computation marked it as not cacheable."""


class Memo(Generic[K, V]):
    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()
        self.stats = MemoStats()

    async def get(self, key: K, compute: Callable[[], Awaitable[tuple[V, bool]]]) -> V:
        """Return the cached result, or else call `compute`, which returns a result and whether it may be cached."""
        lock = self._locks.get(key)
        if lock is None:
            self._locks[key] = lock = asyncio.Lock()
        async with lock:
            if key in self._kept:
                self.stats.hits += 1
                self._kept.move_to_end(key)
                return self._kept[key]
            self.stats.misses += 1
            value, keep = await compute()
            if keep:
                self._kept[key] = value
                if len(self._kept) > self._size:
                    self._kept.popitem(last=False)
            else:
                self.stats.refused += 1
            return value
