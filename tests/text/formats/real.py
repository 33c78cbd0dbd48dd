"""Published tokenizers: those that scripts/test-tools.sh fetches, and what somebody put into ETUDE_TOKENIZERS.

A file is loaded when a test first asks for it, not while tests are collected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from etude.text.formats import FORMATS
from etude.text.pretrained import PretrainedTokenizer

FETCHED = Path("~/.cache/etude/test-tools/tokenizers").expanduser()
_ROOTS = (FETCHED, os.environ.get("ETUDE_TOKENIZERS"))
FILES = [file for root in _ROOTS if root for file in sorted(Path(root).rglob("tokenizer.json"))]


def _formats(file: Path) -> Iterator[str]:
    """The formats whose special tokens the file has."""
    text = file.read_text(encoding="utf-8")
    for name, made in FORMATS.items():
        if all(f'"{token}"' in text for token in made.NAMES if token not in made.OPTIONAL):
            yield name


REAL = [(name, file) for file in FILES for name in _formats(file)]

_NONE = pytest.mark.skip(reason="needs npm: see scripts/test-tools.sh")
every_real = pytest.mark.parametrize(
    ("name", "file"),
    [pytest.param(name, file, id=f"{name}-{file.parent.name}") for name, file in REAL]
    or [pytest.param("none", Path("none"), marks=_NONE)],
)
every_file = pytest.mark.parametrize(
    "file",
    [pytest.param(file, id=file.parent.name) for file in FILES] or [pytest.param(Path("none"), marks=_NONE)],
)


@lru_cache(maxsize=1)
def loaded(file: Path) -> PretrainedTokenizer:
    return PretrainedTokenizer.load(file)
