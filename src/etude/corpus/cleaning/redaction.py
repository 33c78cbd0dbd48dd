"""Redacts secrets and personal data in texts, most of which have none.

Most patterns need one of some words in the text (`Pattern.near`). To look for each of a hundred words takes longer than
to look up all of a text's trigrams at once, which tells almost as well which patterns cannot match.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from etude.trace.redact import Redactor
from etude.trace.redact.patterns import Pattern, patterns


def without_secrets(text: str, counts: Counter[str]) -> str:
    """Redact secrets and personal data. Placeholders are numbered per text, so a text alone decides how it is cleaned.
    What was redacted is added to `counts`, by kind."""
    # A pattern looks for its words again, which takes no time in the one word that is known to be there.
    found = [pattern for pattern, word in _likely(text.lower()) if next(pattern.find(text, word), None)]
    if not found:
        return text
    redactor = Redactor()
    if any(pattern.spread for pattern in found):
        redactor.learn(text)
    cleaned: str = redactor.clean(text)
    counts.update(redactor.counts)
    return cleaned


def _likely(lowered: str) -> Iterator[tuple[Pattern, str]]:
    """Yield the patterns that may match a text in lower case, each with one of its words in the text."""
    table, words = _words()
    data = np.frombuffer(lowered.encode("utf-8", "replace"), dtype=np.uint8)
    seen = {0, *table[_keys(data)].tobytes().translate(None, b"\0")}
    for pattern in patterns():
        for number, word in words[pattern.name]:
            if number in seen and word in lowered:
                yield pattern, word
                break


@cache
def _words() -> tuple[NDArray[np.uint8], dict[str, list[tuple[int, str]]]]:
    """Return a table that numbers the first trigram of each word by its key (0: of no word), and the words of each
    pattern with the number of their trigram (0: the word is shorter)."""
    table = np.zeros(1 << 18, dtype=np.uint8)
    words: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for pattern in patterns():
        for word in pattern.near:
            keys = _keys(np.frombuffer(word.encode(), dtype=np.uint8)[:3])
            if len(keys) and not table[keys[0]]:
                table[keys[0]] = np.count_nonzero(table) + 1
            words[pattern.name].append((int(table[keys[0]]) if len(keys) else 0, word))
    return table, words


def _keys(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return a key below 2**18 of each three consecutive bytes. Different trigrams rarely have the same."""
    if len(data) < 3:
        return np.zeros(0, dtype=np.uint32)
    wide = data.astype(np.uint32)
    keys: NDArray[np.uint32] = np.bitwise_xor(np.bitwise_xor(wide[:-2] << 10, wide[1:-1] << 5), wide[2:])
    return keys
