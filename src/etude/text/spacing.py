"""The tokenizer's space rule, which predicts whether a space is between two tokens, so that most spaces need no token.

Invariant: the prediction depends only on the classes of the previous and the next token (table `SPACE_EXPECTED`). Where
the text differs from the prediction, the encoder writes an explicit token. The rule therefore affects only the length
of an encoding, never its correctness.
"""

from __future__ import annotations

import keyword
from enum import IntEnum, StrEnum


class Left(IntEnum):
    """Class of a token by the spaces expected before it, given the `Right` of the token before."""

    NEVER = 0
    """No space before: line ends, runs of spaces, the "no space" token, special tokens."""
    JOIN = 1
    """Tokens that follow a word without a space: closing brackets, commas, dots, continuations of a word or number."""
    OPEN = 2
    """Opening brackets, and operators written without spaces, such as a sign. They follow a word without a space
    (`f(`), but a keyword with one (`return (`)."""
    OPERAND = 3
    """Words, numbers and opening quotes. A space separates them from a word that precedes."""
    SPACED = 4
    """Operators with a space on either side."""


class Right(IntEnum):
    """Class of a token by the spaces expected after it, given the `Left` of the token after."""

    START = 0
    """No space after: line ends, runs of spaces, the "no space" token, special tokens."""
    TIGHT = 1
    """The next word follows without a space: opening brackets, dots, operators written without spaces."""
    OPERAND = 2
    """Words, numbers, closing brackets and closing quotes. A space separates them from a word that follows."""
    KEYWORD = 3
    """Keywords: like operands, but with a space before a following bracket or sign: `return (`, `in [`, `else -1`."""
    WANT = 4
    """Operators with a space on either side, and punctuation that a space follows."""


class Form(StrEnum):
    """The kind of a token. The same characters may be tokens of several kinds, with different spaces around them."""

    SPECIAL = "special"
    BYTE = "byte"
    GLUE = "glue"
    """Means "no space here"; written between two tokens where the rule expects a space."""
    NUMBER = "number"
    RUN = "run"
    """A run of several spaces. A single explicit space is encoded as its byte."""
    SPACED = "spaced"
    TRAILED = "trailed"
    """Punctuation before a space or the end of the line."""
    OPENING = "opening"
    CLOSING = "closing"
    LEADING = "leading"
    """One or two underscores that begin a name."""
    JOINED = "joined"
    """Underscores inside a name or at its end."""
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
"""SPACE_EXPECTED[right][left]: whether a space is expected between tokens of these classes."""

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
    """Return a token's classes, by the spaces expected before it and after it. A byte has those of its character."""
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
