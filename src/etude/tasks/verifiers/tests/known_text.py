"""What code under test can read in its box, or compute without solving the task: the rewritten suite, the workspace,
the instruction, and the answers that the unsolved code gives. Every literal in these texts counts as known."""

from __future__ import annotations

import re
from collections.abc import Iterable

LARGEST = 4 << 20
"""Maximum number of bytes of text that are searched, in the given order. The rest is assumed to tell nothing."""
_NUMBER = re.compile(r"\d{1,99}(?:\.\d{1,99})?(?:e[+-]?\d{1,9})?")
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"[^\W_]+")
_TO_LISTS = str.maketrans("({})", "[[]]")
_LOOSE = re.compile(r"[\s'\"`]+")


class KnownText:
    def __init__(self, texts: Iterable[bytes]) -> None:
        self._text = "\n".join(_decoded(texts)).casefold()
        self._numbers = set(_numbers_in(self._text))
        self._words = set(_WORD.findall(self._text))
        self._loose = _loosely(self._text)

    def knows(self, value: object) -> bool:
        """Return whether a value appears in the texts. A list counts as known where its items appear side by side in
        any brackets, such as the arguments of a call. None, booleans and empty values are not looked for."""
        if value is None or isinstance(value, bool):
            return False
        if isinstance(value, int | float):
            return _number(value) in self._numbers
        if isinstance(value, bytes):
            value = value.decode("latin-1")
        if isinstance(value, str):
            folded = value.casefold()
            return bool(value) and (folded in self._text or folded.encode("unicode_escape").decode() in self._text)
        if isinstance(value, set | frozenset):
            value = sorted(value, key=repr)
        if isinstance(value, list | tuple | dict):
            return bool(value) and _loosely(repr(value).casefold()) in self._loose
        return False

    def knows_word(self, word: str) -> bool:
        return word.casefold() in self._words


def _decoded(texts: Iterable[bytes]) -> Iterable[str]:
    left = LARGEST
    for text in texts:
        if left > 0 and b"\0" not in text[:8192]:
            yield text[:left].decode("utf-8", "replace")
            left -= len(text)


def _numbers_in(text: str) -> Iterable[str]:
    """Yield every number in a text. The halves of a decimal or of a number with separators count too."""
    for found in set(_NUMBER.findall(text.replace("_", ""))):
        yield _number(int(found) if found.isdecimal() else float(found))
        yield from (_number(int(part)) for part in _DIGITS.findall(found))


def _number(value: float) -> str:
    """Return the same text for numbers that are equal but for their sign."""
    try:
        return str(int(abs(value))) if value == int(value) else repr(abs(value))
    except (OverflowError, ValueError):  # Infinite, or not a number.
        return repr(value)


def _loosely(text: str) -> str:
    """Return a text without spaces and quotes, in which all brackets are alike, so that a value has one spelling in
    Python, JavaScript and JSON."""
    bare = _LOOSE.sub("", text).translate(_TO_LISTS)
    return bare.replace(",]", "]").replace("none", "null").replace("undefined", "null")
