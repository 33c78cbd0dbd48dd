"""The published tokenizers that somebody put into the folder ETUDE_TOKENIZERS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.text.formats.golden import TOOLS

from etude.text import TokenizerError
from etude.text.formats import FORMATS
from etude.text.pretrained import PretrainedTokenizer


def real() -> Iterator[tuple[str, Path]]:
    """Formats and files: a folder's tokenizer is asked for every format whose special tokens it has."""
    root = os.environ.get("ETUDE_TOKENIZERS")
    for file in sorted(Path(root).rglob("tokenizer.json")) if root else ():
        tokenizer = PretrainedTokenizer.load(file)
        for name, make in FORMATS.items():
            try:
                make(tokenizer, TOOLS)
            except TokenizerError:
                continue
            yield name, file


REAL = list(real())
