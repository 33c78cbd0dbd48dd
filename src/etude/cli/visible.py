"""Text of others on a terminal: nothing that a file, a command or an agent says moves the cursor, turns text around or
hides a part of it."""

from __future__ import annotations

_KEPT = "\n\t"
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in _KEPT} | {0x7F: "\u2421"}
_NAMED = [
    *range(0x80, 0xA0),  # controls of one byte: some terminals obey them
    0x061C, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF,
    *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080),
]  # fmt: skip
_CONTROLS: dict[int, str] = _PICTURES | {code: f"<U+{code:04X}>" for code in _NAMED}


def visible(text: str) -> str:
    """With a picture or a name for each character that controls rather than shows."""
    return text.translate(_CONTROLS)


def exact(text: str) -> str:
    """For what somebody is to agree to: every character that is not plainly to be seen has its name, also spaces that
    are none and what joins letters."""
    shown = text.translate(_PICTURES)
    return "".join(sign if sign.isprintable() or sign in _KEPT else f"<U+{ord(sign):04X}>" for sign in shown)
