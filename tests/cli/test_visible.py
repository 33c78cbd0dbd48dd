"""Text of others on a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.cli.visible import exact, visible


def test_controls_are_pictures_or_numbers() -> None:
    assert visible("a\x1b[2J\r\x07\x7f\tb\n") == "a␛[2J␍␇␡\tb\n"
    assert visible("\x9b2J\u202e\u2066\u200b\u2028") == "<U+009B>2J<U+202E><U+2066><U+200B><U+2028>"
    assert visible("Ünïcode 💡 是 👩\u200d💻") == "Ünïcode 💡 是 👩\u200d💻"
    assert exact("rm\u00a0x \u200d\ud800 é") == "rm<U+00A0>x <U+200D><U+D800> é"


@given(st.text())
def test_what_is_exact_is_all_to_be_seen(text: str) -> None:
    shown = exact(text)
    assert all(sign.isprintable() or sign in "\n\t" for sign in shown)
    assert shown.count("\n") == text.count("\n")
    assert all((ord(sign) >= 32 and not 127 <= ord(sign) < 160) or sign in "\n\t" for sign in visible(text))
