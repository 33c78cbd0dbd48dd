"""Exceptions of the corpus."""

from __future__ import annotations


class CorpusError(Exception):
    """A source, shard or mixture cannot be used. The message says what was expected, what was found and what to do."""
