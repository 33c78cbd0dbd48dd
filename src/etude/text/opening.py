"""Opens a tokenizer file, whether a run trained it or a published model brought it."""

from __future__ import annotations

from pathlib import Path

from etude.text.pretrained import PretrainedTokenizer
from etude.text.tokenizer import Tokenizer
from etude.text.vocabulary import FORMAT

_FIRST_BYTES = 100


def open_tokenizer(path: Path) -> Tokenizer | PretrainedTokenizer:
    """Open Étude's own tokenizer or a published model's; `path` is the file or its folder. Raises TokenizerError."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        return PretrainedTokenizer.load(file)  # which says what is wrong
    with file.open("rb") as opened:
        own = f'"{FORMAT.partition("/")[0]}/'.encode() in opened.read(_FIRST_BYTES)
    return Tokenizer.load(file) if own else PretrainedTokenizer.load(file)
