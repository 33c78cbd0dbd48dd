"""What a campaign fuzzes: a parser with an oracle, and a description of its inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    run: Callable[[bytes], str]
    """Feeds one input to the parser and checks everything that must hold. Returns the outcome in a few words, such as
    the kind of refusal. Any exception that leaves it is a break."""
    inputs: SearchStrategy[bytes]
    """Draws inputs that are mostly well formed."""
    watches: tuple[str, ...]
    """Modules whose lines count as coverage, as prefixes of their names."""
    examples: Callable[[], list[bytes]] = list
    """Makes valid inputs, from which mutations start."""
    largest: int = 1 << 16
    """Maximum bytes of an input."""
    seconds: float = 1.0
    """Maximum CPU time of one input."""
    megabytes: int = 64
    """Maximum memory of one input, at its peak."""


_VARIABLE = re.compile(r"b?'(?:[^'\\]|\\.)*'|b?\"(?:[^\"\\]|\\.)*\"|[0-9a-f]{8,}|\d+")
_MOST_WORDS = 8


def kind_of(error: Exception) -> str:
    """Return a short text for a refusal, which is the same for all refusals of one kind: its type and the first words
    of its message, without what the input gave."""
    words = _VARIABLE.sub("_", str(error)[:400]).split()
    return " ".join([type(error).__name__, *words[:_MOST_WORDS]])
