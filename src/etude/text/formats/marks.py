"""A format's special tokens, and texts in which they stand.

Invariant: a special id comes from the format's own words alone. What people, tools and models say is one plain text to
the tokenizer, so `<tool_call>` in a file stays seven letters and its brackets.
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
    """`marks["<|im_end|>"]` is an id. A name that the tokenizer lacks is refused, unless it is optional."""

    def __init__(self, tokenizer: TokenizerLike, names: Sequence[str], optional: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        found = {name: tokenizer.special(name) for name in (*names, *optional)}
        missing = [name for name in names if found[name] is None]
        if missing:
            raise TokenizerError(f"the tokenizer has no token {', '.join(missing)}: it belongs to another format")
        self._ids = {name: token for name, token in found.items() if token is not None}
        self._names = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")")

    def __getitem__(self, name: str) -> int:
        return self._ids[name]

    def pair(self, first: str, last: str) -> tuple[int, int] | None:
        """None where the tokenizer lacks one of two optional tokens."""
        return (self._ids[first], self._ids[last]) if first in self._ids and last in self._ids else None

    def published(self, text: str) -> list[Piece]:
        """The words of a template, in which the names of special tokens are those tokens. Never for what was said."""
        return [self._ids.get(part, part) for part in self._names.split(text) if part]

    def ids(self, pieces: Sequence[Piece]) -> list[int]:
        """Text between two special tokens is encoded in one go, as the whole rendered template would be: where one
        piece ends and the next begins, a tokenizer may have a token that spans both."""
        ids: list[int] = []
        for plain, group in groupby(pieces, key=lambda piece: isinstance(piece, str)):
            if plain:
                ids += self._tokenizer.encode("".join(str(piece) for piece in group))
            else:
                ids += [int(piece) for piece in group]
        return ids
