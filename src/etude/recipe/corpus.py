"""Recipe sections for the tokenizer and the pretraining corpus."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etude.recipe.section import Section


class TokenizerRecipe(Section):
    vocab_size: int = Field(1024, ge=300)
    """Size of the vocabulary, including the special tokens and the 256 bytes."""


class CorpusRecipe(Section):
    sources: list[Literal["stdlib", "generated"]] = ["stdlib", "generated"]
    """Where documents come from: "stdlib" is the standard library of the running interpreter; "generated" are documents
    made from the train task families."""
    folders: list[str] = []
    """Additional folders of code to include."""
    stdlib_share: float = Field(0.25, ge=0, le=1)
    """Share of the training tokens that come from the standard library and `folders`."""
    generated_documents: int = Field(20_000, ge=0)
    """Number of documents to generate from the train task families."""
    max_file_bytes: int = Field(100_000, ge=100)
    """Files larger than this are left out."""
    near_duplicate_similarity: float = Field(0.8, gt=0, le=1)
    """A document is dropped as a near duplicate if its shingles have at least this Jaccard similarity with
    another's."""
    held_out_share: float = Field(0.02, gt=0, lt=0.5)
    """Share of the documents held out for the validation loss, chosen by a hash of their text."""
    shard_tokens: int = Field(1_000_000, ge=1_000)
    """Approximate number of tokens per shard on disk."""
