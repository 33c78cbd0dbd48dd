"""`LETTERS`, the letter that stands for each byte in a byte-level vocabulary."""

from __future__ import annotations


def _letters() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(value if value in printable else next(others)) for value in range(0x100)]


LETTERS = _letters()
