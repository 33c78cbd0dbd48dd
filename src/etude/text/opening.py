"""Opens a tokenizer, of a run or of a published model, and the chat format that goes with it."""

from __future__ import annotations

from pathlib import Path

from etude.text.compact import CompactFormat
from etude.text.finding import find_format
from etude.text.format import Format
from etude.text.formats import FORMATS
from etude.text.pretrained import PretrainedTokenizer
from etude.text.tokenizer import Tokenizer
from etude.text.vocabulary import FORMAT, TokenizerError

_FIRST_BYTES = 100


def open_tokenizer(path: Path) -> Tokenizer | PretrainedTokenizer:
    """Open Étude's own tokenizer or a published model's; `path` is the file or its folder. Raises TokenizerError."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        return PretrainedTokenizer.load(file)  # which says what is wrong
    with file.open("rb") as opened:
        own = f'"{FORMAT.partition("/")[0]}/'.encode() in opened.read(_FIRST_BYTES)
    return Tokenizer.load(file) if own else PretrainedTokenizer.load(file)


def open_format(path: Path, name: str = "auto") -> tuple[str, Format, Tokenizer | PretrainedTokenizer]:
    """Return the name of a chat format, the format, and its tokenizer; `path` is the tokenizer's file or its folder.
    "auto" is the format compact for Étude's own tokenizer, else what the folder's chat template writes. Raises
    TokenizerError if format and tokenizer do not fit together, or if no format is found."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if name == "compact":
        own = Tokenizer.load(file)
        return name, CompactFormat(own), own
    tokenizer = open_tokenizer(file) if name == "auto" else PretrainedTokenizer.load(file)
    if isinstance(tokenizer, Tokenizer):
        return "compact", CompactFormat(tokenizer), tokenizer
    if name == "auto":
        name = find_format(file.parent, tokenizer).name
    if name not in FORMATS:
        raise TokenizerError(f"format {name}: expected auto, compact or one of {', '.join(FORMATS)}")
    return name, FORMATS[name](tokenizer), tokenizer
