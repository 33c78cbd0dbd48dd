"""Recipe sections for the tokenizer and the pretraining corpus."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etude.recipe.section import Section


class TokenizerRecipe(Section):
    vocab_size: int = Field(1024, ge=300)
    """Number of tokens in the vocabulary, including the special tokens and the 256 bytes."""


class CorpusRecipe(Section):
    sources: list[Literal["stdlib", "generated"]] = ["stdlib", "generated"]
    """Where documents come from: "stdlib" is the standard library of the running interpreter; "generated" are synthetic
    documents made from the task families of the train split."""
    folders: list[str] = []
    """Additional folders of Python code to include."""
    stdlib_share: float = Field(0.25, ge=0, le=1)
    """Share of the training tokens that come from the standard library and `folders`."""
    generated_documents: int = Field(20_000, ge=0)
    """Number of synthetic documents to generate from the task families of the train split."""
    max_file_bytes: int = Field(100_000, ge=100)
    """Maximum size in bytes of a code file; larger files are left out."""
    near_duplicate_similarity: float = Field(0.8, gt=0, le=1)
    """Similarity at which two documents count as near duplicates, so that the later one is dropped: the Jaccard
    similarity of their shingles (sequences of five words)."""
    held_out_share: float = Field(0.02, gt=0, lt=0.5)
    """Share of the documents held out for the validation loss, chosen by a hash of their text."""
    shard_tokens: int = Field(1_000_000, ge=1_000)
    """Approximate number of tokens per shard on disk."""
