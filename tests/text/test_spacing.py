from __future__ import annotations

from etude.text.spacing import SPACE_EXPECTED, Form, Left, Right, sides


def test_every_byte_has_sides_and_the_table_is_complete() -> None:
    assert len({sides(Form.BYTE, bytes([value])) for value in range(256)}) > 1
    assert len(SPACE_EXPECTED) == len(Right)
    assert {len(row) for row in SPACE_EXPECTED} == {len(Left)}
    assert not any(SPACE_EXPECTED[Right.START])
    assert not any(row[Left.NEVER] for row in SPACE_EXPECTED)
