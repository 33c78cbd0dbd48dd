"""The tokenizer's space rule, which predicts whether a space is between two tokens, so that most spaces need no token.

Invariant: the prediction depends only on the classes of the previous and the next token (table `SPACE_EXPECTED`). Where
the text differs from the prediction, the encoder writes an explicit token. The rule therefore affects only the length
of an encoding, never its correctness.
"""

from __future__ import annotations

import keyword
from enum import IntEnum, StrEnum


class Left(IntEnum):
    """Class of a token by the spaces that are expected before it. Of two adjacent tokens, the `Right` of the first and
    the `Left` of the second decide whether a space is expected between them."""

    NEVER = 0
    """Tokens before which no space is expected: line ends, runs of spaces, the "no space" token, special tokens."""
    JOIN = 1
    """Tokens that follow a word without a space: closing brackets, commas, dots, continuations of a word or number."""
    OPEN = 2
    """Opening brackets, and operators written without spaces, such as a sign. No space is expected between a word and
    such a token (`f(`), but one is expected between a keyword and it (`return (`)."""
    OPERAND = 3
    """Words, numbers and opening quotes, which a space separates from a word before them."""
    SPACED = 4
    """Operators that are written with a space on either side."""


class Right(IntEnum):
    """Class of a token by the spaces that are expected after it. Of two adjacent tokens, the `Right` of the first and
    the `Left` of the second decide whether a space is expected between them."""

    START = 0
    """Tokens after which no space is expected: line ends, runs of spaces, the "no space" token, special tokens."""
    TIGHT = 1
    """Tokens that the next word follows without a space: opening brackets, dots, operators written without spaces."""
    OPERAND = 2
    """Words, numbers, closing brackets and quotes, which a space separates from a word after them."""
    KEYWORD = 3
    """Keywords: like operands, but with a space before a following bracket or sign: `return (`, `in [`, `else -1`."""
    WANT = 4
    """Operators with a space on either side, and punctuation that a space follows."""


class Form(StrEnum):
    """The kind of a vocabulary token. The same characters may exist as tokens of several kinds, around which different
    spaces are expected."""

    SPECIAL = "special"
    BYTE = "byte"
    GLUE = "glue"
    """The token that means "no space here". It is written between two tokens without a space if the tokenizer's rule
    expects one between them."""
    NUMBER = "number"
    RUN = "run"
    """A run of several spaces. A single explicit space is encoded as its byte."""
    SPACED = "spaced"
    TRAILED = "trailed"
    """Punctuation followed by a space or by the end of the line."""
    OPENING = "opening"
    CLOSING = "closing"
    LEADING = "leading"
    """A token of one or two underscores that begin a name."""
    JOINED = "joined"
    """A token of underscores inside a name or at its end."""
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
"""Whether a space is expected between two adjacent tokens: SPACE_EXPECTED[right][left], where `right` is the class
`Right` of the first token and `left` the class `Left` of the second."""

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
    """Return a token's two classes: `Left`, by the spaces expected before it, and `Right`, by those expected after it.
    A byte token has the classes of its character."""
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
