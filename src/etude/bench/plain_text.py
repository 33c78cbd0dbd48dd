"""Texts as a base model reads them: token ids without a chat format."""

from __future__ import annotations

from typing import Protocol

from etude.text import TextTokenizer, TokenizerError


class EncodingTokenizer(TextTokenizer, Protocol):
    """Étude's own tokenizer or a published model's."""

    def encode(self, text: str) -> list[int]: ...


def prompt_ids(tokenizer: EncodingTokenizer, text: str) -> list[int]:
    """Return the ids of the beginning of a document."""
    try:
        return next(iter(tokenizer.documents([text])))[:-1]
    except TokenizerError:  # the vocabulary has no token that ends one
        return tokenizer.encode(text)


def scored_ids(tokenizer: EncodingTokenizer, text: str) -> tuple[list[int], int]:
    """Return a text's ids, the first of which is not scored, and the bytes of the text that the others stand for.

    The first is the token that begins a document, or else the one that ends the document before, so that all of the
    text is scored. With a vocabulary that has neither, the text's own first token is not scored."""
    ids, size = prompt_ids(tokenizer, text), len(text.encode())
    try:
        around = next(iter(tokenizer.documents([""])))
    except TokenizerError:
        return ids, size - len(tokenizer.text(ids[:1]).encode())
    return ids if len(around) > 1 else [*around, *ids], size
