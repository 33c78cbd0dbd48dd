"""What the model reads before it acts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etude.recipe.section import Section


class TokenizerRecipe(Section):
    vocab_size: int = Field(1024, ge=300)
    """Including the special tokens and the 256 byte fallbacks."""


class CorpusRecipe(Section):
    sources: list[Literal["stdlib", "generated"]] = ["stdlib", "generated"]
    """"stdlib" is the running interpreter's own library; "generated" are documents written from the train families."""
    folders: list[str] = []
    """Further folders of code to read."""
    stdlib_share: float = Field(0.25, ge=0, le=1)
    """Share of the tokens that come from the standard library (and folders)."""
    generated_documents: int = Field(20_000, ge=0)
    """Documents written from the train families."""
    max_file_bytes: int = Field(100_000, ge=100)
    """Longer files are left out."""
    near_duplicate_similarity: float = Field(0.8, gt=0, le=1)
    """Jaccard similarity of shingles from which a document counts as a near duplicate."""
    held_out_share: float = Field(0.02, gt=0, lt=0.5)
    """Share of documents kept for the validation loss, chosen by hash."""
    shard_tokens: int = Field(1_000_000, ge=1_000)
    """Tokens of one shard on disk, about."""
