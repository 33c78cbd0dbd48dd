"""Makes untrusted text safe to print: nothing that a file, a command or an agent wrote can move the cursor, reverse the
direction of text or hide part of it."""

from __future__ import annotations

_KEPT = "\n\t"
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in _KEPT} | {0x7F: "\u2421"}
_NAMED = [
    *range(0x80, 0xA0),  # C1 controls: some terminals obey them
    0x061C, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF,
    *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080),
]  # fmt: skip
_CONTROLS: dict[int, str] = _PICTURES | {code: f"<U+{code:04X}>" for code in _NAMED}


def visible(text: str) -> str:
    """Replace each control or formatting character by a symbol or its code point, such as `<U+202E>`."""
    return text.translate(_CONTROLS)


def exact(text: str) -> str:
    """Like `visible`, for text that the user must approve: every character that is not printable is replaced by its
    code point, including unusual spaces and joiners."""
    shown = text.translate(_PICTURES)
    return "".join(sign if sign.isprintable() or sign in _KEPT else f"<U+{ord(sign):04X}>" for sign in shown)
