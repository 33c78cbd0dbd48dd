"""Recipe sections for the tokenizer and the pretraining corpus."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from etude.recipe.section import Section

Language = Literal[
    "python", "javascript", "typescript", "go", "rust", "java", "c", "cpp", "ruby",
    "csharp", "kotlin", "scala", "swift", "php", "lua", "shell", "sql", "html", "css", "config", "markdown",
]  # fmt: skip
"""The first nine have grammars (the extra `search`). "config" is JSON, TOML and YAML."""

SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]


class TokenizerRecipe(Section):
    vocab_size: int = Field(1024, ge=300)
    """Number of tokens in the vocabulary, including the special tokens and the 256 bytes."""


class CodeRecipe(Section):
    """One named source of code: `[corpus.code.NAME]`."""

    path: str
    """A git repository, a folder, or a table: .jsonl (also .gz or .zst) or .parquet. Repositories and tables below a
    folder are found. Of a repository, the files of a commit are read, so nothing that git ignores."""
    revision: str = "HEAD"
    """Commit, branch or tag that is read of each git repository."""
    weight: float = Field(1.0, gt=0)
    """How often training reads this source's documents, compared with code of weight 1, such as the standard
    library."""
    languages: list[Language] = ["python", "javascript", "typescript", "go", "rust", "java", "c", "cpp", "ruby"]
    """Languages to keep, by the file's name, or by a table's column."""
    licences: list[str] = []
    """SPDX names of the licences to keep, or "permissive" for the usual permissive ones; empty keeps everything. A
    file's licence is named in its first lines, in a table's column, or by the closest LICENSE file above it."""
    exclude: list[str] = []
    """Patterns of paths to leave out, such as "migrations/*" or "*_pb2.py", in addition to hidden files and installed
    packages. `*` also matches slashes."""
    join_bytes: int = Field(0, ge=0)
    """0 makes each file a document. Otherwise a repository's files are joined into documents of up to this many bytes,
    each file after those that it imports: for long contexts, which single files rarely fill."""
    fill_in_middle: float = Field(0.0, ge=0, le=1)
    """Share of the documents whose middle is moved to their end, so that the model learns to fill gaps. Needs a
    published tokenizer with tokens for it."""


class CorpusRecipe(Section):
    LATER: ClassVar[frozenset[str]] = frozenset({"code"})
    sources: list[Literal["stdlib", "generated"]] = ["stdlib", "generated"]
    """Where documents come from: "stdlib" is the standard library of the running interpreter; "generated" are synthetic
    documents made from the task families of the train split."""
    folders: list[str] = []
    """Additional folders of Python code to include. `code` reads other languages too, redacts, and knows licences."""
    code: dict[SourceName, CodeRecipe] = {}
    """Named sources of code, each a section `[corpus.code.NAME]`."""
    stdlib_share: float = Field(0.25, ge=0, le=1)
    """Share of the training tokens that come from the standard library, `folders` and `code`."""
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

    @field_validator("code")
    @classmethod
    def _own_names(cls, code: dict[str, CodeRecipe]) -> dict[str, CodeRecipe]:
        if taken := code.keys() & {"stdlib", "folder", "generated"}:
            raise ValueError(f"the name {min(taken)!r} is taken by another source of the corpus; choose another")
        return code
