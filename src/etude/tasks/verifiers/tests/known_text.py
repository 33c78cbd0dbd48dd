"""Decides which values code under test knows without solving the task. Such code can read the test suite as placed in
its box, the workspace and the instruction, and compute the answers of the unsolved code. Every literal in these texts
is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LARGEST = 16 << 20
"""Maximum number of bytes of text that are searched, in the given order. The rest is ignored, so answers in it count as
unknown."""
_NUMBER = re.compile(r"(?:\d[\d_]{0,99}(?:\.[\d_]{1,99})?|\.\d[\d_]{0,99})(?:e[+-]?\d{1,9})?")
_BASED = re.compile(r"0x[\da-f][\da-f_]{0,99}|0o[0-7][0-7_]{0,99}|0b[01][01_]{0,99}")
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"[^\W_]+")
_TO_LISTS = str.maketrans("({})", "[[]]")
_LOOSE = re.compile(r"[\s'\"`]+")


class KnownText:
    def __init__(self, texts: Iterable[bytes], besides: KnownText | None = None) -> None:
        """`besides`: further texts. A value in them is known too."""
        self._besides = besides
        self._numbers, self._words = set[str](), set[str]()
        whole, loose = list[bytes](), list[bytes]()
        for text in map(str.casefold, _decoded(texts)):
            self._numbers.update(_numbers_in(text))
            self._words.update(found[0] for found in _WORD.finditer(text))
            whole.append(text.encode())
            loose.append(_loosely(text).encode())
        # Kept as UTF-8, since a text with a single emoji takes four times as much memory as a str.
        self._text, self._loose = b"\n".join(whole), b"\n".join(loose)

    def knows(self, value: object) -> bool:
        """Return whether a value appears in the texts. A list counts as known where its items appear side by side in
        any brackets, such as the arguments of a call. None, booleans and empty values are not looked for."""
        return self._knows(value) or (self._besides is not None and self._besides.knows(value))

    def knows_word(self, word: str) -> bool:
        return word.casefold() in self._words or (self._besides is not None and self._besides.knows_word(word))

    def _knows(self, value: object) -> bool:
        if value is None or isinstance(value, bool):
            return False
        if isinstance(value, int | float):
            return _number(value) in self._numbers
        if isinstance(value, bytes):
            value = value.decode("latin-1")
        if isinstance(value, str):
            folded = value.casefold()
            spelt = {folded.encode("utf-8", "replace"), folded.encode("unicode_escape")}
            return bool(value) and any(text in self._text for text in spelt)
        if isinstance(value, set | frozenset):
            value = sorted(value, key=repr)
        if isinstance(value, list | tuple | dict):
            return bool(value) and _loosely(repr(value).casefold()).encode("utf-8", "replace") in self._loose
        return False


def _decoded(texts: Iterable[bytes]) -> Iterable[str]:
    left = LARGEST
    for text in texts:
        if left > 0 and b"\0" not in text[:8192]:
            yield text[:left].decode("utf-8", "replace")
            left -= len(text)


def _numbers_in(text: str) -> Iterable[str]:
    """Yield every number in a text, as `str` writes it without a sign. The halves of a decimal or of a number with
    separators count too."""
    for found in {match[0] for match in _NUMBER.finditer(text)}:
        whole = found.replace("_", "")
        yield _number(int(whole) if whole.isdecimal() else float(whole))
        yield from (_number(int(part)) for part in _DIGITS.findall(found))
    yield from (_number(int(match[0].replace("_", ""), 0)) for match in _BASED.finditer(text))


def _number(value: float) -> str:
    """Return a number as text, without its sign. Equal numbers give the same text, such as 2 and 2.0."""
    try:
        return str(int(abs(value))) if value == int(value) else repr(abs(value))
    except (OverflowError, ValueError):  # Infinite, or not a number.
        return repr(value)


def _loosely(text: str) -> str:
    """Return a text without spaces and quotes, in which all brackets are alike, so that a value has one spelling in
    Python, JavaScript and JSON."""
    bare = _LOOSE.sub("", text).translate(_TO_LISTS)
    return bare.replace(",]", "]").replace("none", "null").replace("undefined", "null")
