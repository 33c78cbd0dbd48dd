"""Exceptions of the benchmarks."""

from __future__ import annotations


class BenchError(Exception):
    """A benchmark cannot run as asked. The message is one line that says what was expected, what was found and what to
    do."""
