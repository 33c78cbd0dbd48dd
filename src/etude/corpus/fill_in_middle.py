"""Fill-in-the-middle: some documents are shown as prefix, suffix, and then the middle, between tokens that the
tokenizer has for it, so that the model learns to write what fits between two texts.

Whether a document is rearranged, and where it is cut, follows from a hash of its text.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from etude.corpus.document import Document
from etude.corpus.errors import CorpusError
from etude.text import TextTokenizer
from etude.text.pretrained import PretrainedTokenizer


class Marks(NamedTuple):
    """Ids of the tokens before the prefix, the suffix and the middle."""

    prefix: int
    suffix: int
    middle: int


MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
"""The names that published vocabularies give them."""


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    marks: Marks
    shares: Mapping[str, float]
    """Share of the documents of each source that are rearranged."""

    @classmethod
    def of(cls, tokenizer: TextTokenizer, shares: Mapping[str, float]) -> FillInMiddle:
        """Find the tokenizer's tokens. Raises CorpusError if it has none."""
        if isinstance(tokenizer, PretrainedTokenizer):
            for names in MARKS:
                ids = [found for name in names if (found := tokenizer.special(name)) is not None]
                if len(ids) == len(names):
                    return cls(Marks(*ids), dict(shares))
        raise CorpusError(
            f"corpus.code.{next(iter(shares))}.fill_in_middle: the tokenizer has no tokens for it, such as "
            f"{', '.join(MARKS[0])}; use a published tokenizer that has them, or leave the field out"
        )

    def moved(self, document: Document, ids: list[int], tokenizer: TextTokenizer) -> list[int]:
        """Return the ids of a document with its middle at the end, or `ids` if it stays as it is."""
        text = document.text
        digest = hashlib.sha256(b"etude-fill-in-middle/1:" + text.encode("utf-8", "surrogatepass")).digest()
        rng = random.Random(digest)
        if rng.random() >= self.shares.get(document.source, 0.0):
            return ids
        first, second = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        empty, *parts = tokenizer.documents(["", text[:first], text[second:], text[first:second]])
        begin, end = empty[:-1], empty[-1]
        prefix, suffix, middle = (part[len(begin) : -1] for part in parts)
        return [*begin, self.marks.prefix, *prefix, self.marks.suffix, *suffix, self.marks.middle, *middle, end]
