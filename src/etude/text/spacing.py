"""The space rule: which token classes have a single space between them, so that most spaces need no token.

Invariant: whether a space is expected depends on the previous token and the next token alone, and `SPACE_EXPECTED`
tells. The encoder writes an explicit token wherever the text disagrees with the rule, so the rule decides how long an
encoding is, never whether it is right.
"""

from __future__ import annotations

import keyword
from enum import IntEnum, StrEnum


class Left(IntEnum):
    """What a token says about the space before it."""

    NEVER = 0
    """Line ends, runs of spaces, glue, special tokens."""
    JOIN = 1
    """Closing brackets, commas, dots, continuations of a word or number."""
    OPEN = 2
    """Opening brackets, and operators written without spaces: a call, an index, a sign."""
    OPERAND = 3
    """Words, numbers, opening quotes."""
    SPACED = 4
    """Operators written with a space on either side."""


class Right(IntEnum):
    """What a token says about the space after it."""

    START = 0
    """Nothing is expected: line starts, runs of spaces, glue, special tokens."""
    TIGHT = 1
    """Opening brackets, dots, operators written without spaces."""
    OPERAND = 2
    """Words, numbers, closing brackets and quotes."""
    KEYWORD = 3
    """As an operand, but a bracket or sign that follows stands apart: `return (`, `in [`, `else -1`."""
    WANT = 4
    """Spaced operators, and punctuation that a space followed."""


class Form(StrEnum):
    """What kind of token it is; the same characters may be several tokens that differ in the spaces they expect."""

    SPECIAL = "special"
    BYTE = "byte"
    GLUE = "glue"
    """No space here though the rule expects one."""
    NUMBER = "number"
    RUN = "run"
    """Several spaces; a single explicit one is its byte."""
    SPACED = "spaced"
    TRAILED = "trailed"
    """Punctuation followed by a space or by the end of the line."""
    OPENING = "opening"
    CLOSING = "closing"
    LEADING = "leading"
    """Underscores that begin a name."""
    JOINED = "joined"
    """Underscores inside or at the end of a name."""
    WORD = "word"
    PIECE = "piece"
    """Two or three letters that continue a word."""


KEYWORDS = frozenset(keyword.kwlist) - {"True", "False", "None", "break", "continue", "pass"}

_EXPECTED: dict[Right, tuple[Left, ...]] = {
    Right.START: (),
    Right.TIGHT: (Left.SPACED,),
    Right.OPERAND: (Left.OPERAND, Left.SPACED),
    Right.KEYWORD: (Left.OPERAND, Left.OPEN, Left.SPACED),
    Right.WANT: (Left.JOIN, Left.OPEN, Left.OPERAND, Left.SPACED),
}

SPACE_EXPECTED: tuple[tuple[bool, ...], ...] = tuple(
    tuple(left in _EXPECTED[right] for left in Left) for right in Right
)
"""Indexed by the previous token's Right, then the next token's Left."""

_SIDES: dict[Form, tuple[Left, Right]] = {
    Form.SPECIAL: (Left.NEVER, Right.START),
    Form.GLUE: (Left.NEVER, Right.START),
    Form.RUN: (Left.NEVER, Right.START),
    Form.NUMBER: (Left.OPERAND, Right.OPERAND),
    Form.SPACED: (Left.SPACED, Right.WANT),
    Form.TRAILED: (Left.JOIN, Right.WANT),
    Form.OPENING: (Left.OPERAND, Right.TIGHT),
    Form.CLOSING: (Left.JOIN, Right.OPERAND),
    Form.LEADING: (Left.OPERAND, Right.TIGHT),
    Form.JOINED: (Left.JOIN, Right.TIGHT),
    Form.WORD: (Left.OPERAND, Right.OPERAND),
    Form.PIECE: (Left.JOIN, Right.OPERAND),
}


def sides(form: Form, surface: bytes) -> tuple[Left, Right]:
    """The two sides of a token; bytes go by the character they stand for."""
    if form is Form.BYTE:
        return _byte_sides(surface[0])
    if form is Form.WORD and surface.decode() in KEYWORDS:
        return Left.OPERAND, Right.KEYWORD
    if form is Form.TRAILED and surface == b"#":
        return Left.OPEN, Right.WANT
    return _SIDES[form]


def _byte_sides(value: int) -> tuple[Left, Right]:
    if value >= 0x80:
        return Left.JOIN, Right.TIGHT
    character = chr(value)
    if character in "\n \t":
        return Left.NEVER, Right.START
    if character.isalnum():
        return Left.JOIN, Right.OPERAND
    if character in "([":
        return Left.OPEN, Right.TIGHT
    if character == "{":
        return Left.OPERAND, Right.TIGHT
    if character in ")]}":
        return Left.JOIN, Right.OPERAND
    if character in ";?":
        return Left.JOIN, Right.WANT
    if character in "_,:.!\"'" or not character.isprintable():
        return Left.JOIN, Right.TIGHT
    return Left.OPEN, Right.TIGHT
