"""Which cached prefixes a request may read after weights were swapped: those of its namespace.

The policies are `engine.cache_at_swap` of the recipe, and have the same meaning in every engine (protocol.Engine).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

CacheAtSwap = Literal["reset", "salt", "keep"]
MOST_CONVERSATIONS = 100_000
"""A conversation that is forgotten, because as many others sent requests since, gets a new namespace."""


class Namespaces:
    """Maps conversations to namespaces, which are version numbers. Under "reset" and "keep" there is only one; under
    "reset" the engine drops its cache at each swap besides."""

    def __init__(self, policy: CacheAtSwap) -> None:
        self._policy = policy
        self._began: OrderedDict[str, int] = OrderedDict()

    def of(self, conversation: str, version: int) -> int:
        """Return the namespace of a request that begins under a weights version. Under "salt" it is the version under
        which the conversation's first request began; requests without a conversation go by themselves."""
        if self._policy != "salt":
            return 0
        if not conversation:
            return version
        began = self._began.setdefault(conversation, version)
        self._began.move_to_end(conversation)
        if len(self._began) > MOST_CONVERSATIONS:
            self._began.popitem(last=False)
        return began

    def forget(self, conversation: str) -> None:
        """Forget a conversation that was closed."""
        self._began.pop(conversation, None)
