"""The special tokens of a format, and the encoding of messages that contain them.

Invariant: only the format itself inserts special ids. Text from users, tools and models is encoded as plain text, so
`<tool_call>` in a file becomes ordinary tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

from etude.text.format import TokenizerLike
from etude.text.vocabulary import TokenizerError

Piece: TypeAlias = str | int
"""Plain text, or the id of a special token."""


class Marks:
    """Ids of special tokens by name: `marks["<|im_end|>"]`. Raises TokenizerError if the tokenizer lacks one of
    `names`; `optional` ones may be missing."""

    def __init__(self, tokenizer: TokenizerLike, names: Sequence[str], optional: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        found = {name: tokenizer.special(name) for name in (*names, *optional)}
        missing = [name for name in names if found[name] is None]
        if missing:
            raise TokenizerError(
                f"the tokenizer has no token {', '.join(missing)}: it belongs to another format; "
                "use the tokenizer of the format's model"
            )
        self._ids = {name: token for name, token in found.items() if token is not None}
        self._names = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")")

    def __getitem__(self, name: str) -> int:
        return self._ids[name]

    def pair(self, first: str, last: str) -> tuple[int, int] | None:
        """Return the ids of two special tokens; None if the tokenizer lacks either of them."""
        return (self._ids[first], self._ids[last]) if first in self._ids and last in self._ids else None

    def present(self, *names: str) -> tuple[int, ...]:
        """Return the ids of those special tokens that the tokenizer has."""
        return tuple(self._ids[name] for name in names if name in self._ids)

    def published(self, text: str) -> list[Piece]:
        """Split a template's own text into pieces, with names of special tokens replaced by their ids. Never use this
        for text from users, tools or models."""
        return [self._ids.get(part, part) for part in self._names.split(text) if part]

    def ids(self, pieces: Sequence[Piece]) -> list[int]:
        """Encode pieces. All text between two special tokens is encoded together, as in a rendered template, because a
        token may span the boundary of two pieces."""
        ids: list[int] = []
        for plain, group in groupby(pieces, key=lambda piece: isinstance(piece, str)):
            if plain:
                ids += self._tokenizer.encode("".join(str(piece) for piece in group))
            else:
                ids += [int(piece) for piece in group]
        return ids
