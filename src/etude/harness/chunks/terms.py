"""Splits text and code into terms, the units that BM25 compares.

Queries and chunks are split in the same way. An identifier such as `parseLines` yields itself and the stems of its
parts. Words that occur in nearly every file are dropped.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[^\W\d_][\w]*|_+[^\W_]\w*|\d+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_LONGEST = 100
"""Maximum length of a word; longer words are usually data, and are skipped."""

_ENGLISH = (
    "a an the of to in is it for on and or this that with as by be are from at if which not no will can any all its "
    "was has have when into than then these those do does"
)
_CODE = "self cls def return none null true false import elif else pass raise try except lambda yield async await class"
STOP = frozenset(f"{_ENGLISH} {_CODE}".split())

_ENDINGS = (("ies", "y"), ("ing", ""), ("ied", "y"), ("ed", ""), ("es", ""), ("s", ""))


def terms(text: str) -> list[str]:
    found: list[str] = []
    for word in _WORD.findall(text):
        found += _terms_of(word) if len(word) <= _LONGEST else ()
    return found


@lru_cache(maxsize=100_000)
def _terms_of(word: str) -> tuple[str, ...]:
    parts = [part.lower() for part in _PART.findall(word)]
    found = [stem(part) for part in parts if len(part) > 1 and part not in STOP]
    return (*found, word.lower()) if len(parts) > 1 else tuple(found)


def stem(word: str) -> str:
    """Strip a word's ending by simple rules, so that forms of one word mostly get the same stem."""
    if len(word) <= 3:
        return word
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + instead
            break
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]
    return word
