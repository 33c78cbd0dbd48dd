from __future__ import annotations

import pytest

from etude.text.spacing import SPACE_EXPECTED, Form, Left, Right, sides


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((Form.WORD, b"value"), (Form.WORD, b"low"), True),
        ((Form.WORD, b"clamp"), (Form.BYTE, b"("), False),
        ((Form.WORD, b"return"), (Form.BYTE, b"("), True),
        ((Form.WORD, b"return"), (Form.BYTE, b"-"), True),
        ((Form.BYTE, b"-"), (Form.NUMBER, b"1"), False),
        ((Form.BYTE, b"("), (Form.NUMBER, b"1"), False),
        ((Form.BYTE, b")"), (Form.WORD, b"in"), True),
        ((Form.BYTE, b")"), (Form.BYTE, b")"), False),
        ((Form.WORD, b"a"), (Form.SPACED, b"="), True),
        ((Form.SPACED, b"="), (Form.BYTE, b"["), True),
        ((Form.TRAILED, b","), (Form.OPENING, b'"'), True),
        ((Form.OPENING, b'"'), (Form.WORD, b"a"), False),
        ((Form.WORD, b"a"), (Form.CLOSING, b'"'), False),
        ((Form.WORD, b"a"), (Form.PIECE, b"ble"), False),
        ((Form.NUMBER, b"12"), (Form.BYTE, b"3"), False),
        ((Form.BYTE, b"\n"), (Form.WORD, b"a"), False),
        ((Form.SPECIAL, b"<|call|>"), (Form.WORD, b"edit"), False),
        ((Form.SPACED, b"="), (Form.BYTE, b"\n"), False),
    ],
)
def test_the_rule(before: tuple[Form, bytes], after: tuple[Form, bytes], expected: bool) -> None:
    assert SPACE_EXPECTED[sides(*before)[1]][sides(*after)[0]] is expected


def test_every_byte_has_sides_and_the_table_is_complete() -> None:
    assert len({sides(Form.BYTE, bytes([value])) for value in range(256)}) > 1
    assert len(SPACE_EXPECTED) == len(Right)
    assert {len(row) for row in SPACE_EXPECTED} == {len(Left)}
    assert not any(SPACE_EXPECTED[Right.START])
    assert not any(row[Left.NEVER] for row in SPACE_EXPECTED)
