"""Makes new names for tests, from words in the names of the other tests in the file."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SPARE = ("case", "value", "result", "input", "output", "empty", "single", "many", "first", "last", "order", "default")


class Names:
    """Draws random names that resemble those `known`, and differ from them and from all names drawn before."""

    def __init__(self, known: Iterable[str], rng: random.Random) -> None:
        self._taken = set(known)
        self._rng = rng
        words = {word.lower() for name in self._taken for word in _WORD.findall(name)}
        words -= {"test", "tests"}
        self._words = sorted({*(word for word in words if not word.isdigit()), *_SPARE})
        self._spaced = any(" " in name for name in self._taken)
        self._camel = bool(self._taken) and all("_" not in name[4:] for name in self._taken)

    def draw(self) -> str:
        size = self._rng.randint(2, 4)
        while True:
            words = self._rng.sample(self._words, size)
            if self._spaced:
                name = " ".join(words)
            else:
                name = "test" + "".join(map(str.capitalize, words)) if self._camel else "_".join(["test", *words])
            if name not in self._taken:
                self._taken.add(name)
                return name
            size = min(size + 1, len(self._words))
            if size == len(self._words):  # All combinations of these words may be taken.
                self._words.append(f"case{len(self._words)}")
