"""The tokenizer's vocabulary: an ordered list of tokens, its file format, and how it is learnt from texts.

Invariant: the file alone determines the ids. The special tokens, the 256 bytes, the "no space" token and the numbers
0-99 come first and are in every vocabulary; then come punctuation (as much as fits), words and pieces of words. The
learnt part depends only on the counts of words in the texts; ties are broken alphabetically.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.journal import write_atomically
from etude.text.spacing import Form

FORMAT = "etude-tokenizer/1"
SPECIALS = ("pad", "bos", "system", "user", "assistant", "tool", "call", "think", "end")
MINIMUM = 400
"""Minimum number of tokens; a smaller vocabulary would have no room for words."""

ATOM = re.compile(
    r"( *)("
    r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"  # a word, or one hump of a camelCase name
    r"|[0-9]+|_+|[^\x00-\x7f]+"
    r"|\"\"\"|->|[=!<>+-]=|//|\*\*"
    r"|[^ ]|\Z)"
)
"""Splits a line into atoms (words, numbers, operators), each with the spaces before it. The last match is an empty atom
for the end of the line."""

_PUNCTUATION: tuple[tuple[Form, str], ...] = (
    *((Form.TRAILED, surface) for surface in (",", ":", ".")),
    (Form.SPACED, "="),
    *((Form.RUN, " " * width) for width in (4, 8, 2, 5, 12, 9)),
    (Form.LEADING, "_"),
    *((form, quote) for quote in ('"', "'") for form in (Form.OPENING, Form.CLOSING)),
    *((Form.SPACED, operator) for operator in ("+", "-", "*", "==", "<", ">", "!=", "<=", ">=", "/", "%", "//")),
    *((Form.SPACED, operator) for operator in ("->", "+=", "-=", "**", "|", "&", ":=")),
    (Form.TRAILED, "#"),
    *((form, '"""') for form in (Form.OPENING, Form.CLOSING)),
    (Form.LEADING, "__"),
    (Form.JOINED, "__"),
    *((Form.RUN, " " * width) for width in (3, 6, 7, 10, 13, 16, 17, 20, 24)),
)
"""Punctuation tokens, most useful first, because a small vocabulary keeps only the head of the list."""


class TokenizerError(Exception):
    """A tokenizer cannot be trained or read; the message says what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Token:
    form: Form
    surface: bytes


@dataclass(frozen=True)
class Vocabulary:
    """The learnt part of a vocabulary, which `tokens` appends to the fixed tokens that every vocabulary has."""

    punctuation: tuple[tuple[Form, str], ...]
    words: tuple[str, ...]
    pieces: tuple[str, ...]

    def tokens(self) -> list[Token]:
        """Return all tokens in the order of their ids."""
        return [
            *(Token(Form.SPECIAL, f"<|{name}|>".encode()) for name in SPECIALS),
            *(Token(Form.BYTE, bytes([value])) for value in range(256)),
            Token(Form.GLUE, b""),
            *(Token(Form.NUMBER, str(number).encode()) for number in range(100)),
            *(Token(form, surface.encode()) for form, surface in self.punctuation),
            *(Token(Form.WORD, word.encode()) for word in self.words),
            *(Token(Form.PIECE, piece.encode()) for piece in self.pieces),
        ]


FIXED = len(Vocabulary((), (), ()).tokens())


def learn(texts: Iterable[str], vocab_size: int) -> Vocabulary:
    """Learn a vocabulary from texts. Three quarters of the room for words go to the most frequent words, the rest to
    pieces that spell the other words."""
    if vocab_size < MINIMUM:
        raise TokenizerError(f"vocab_size must be at least {MINIMUM}, found {vocab_size}")
    counts = _count_words(texts)
    room = vocab_size - FIXED
    punctuation = _PUNCTUATION[: room // 2]
    room -= len(punctuation)
    letters = _best({word: counts[word] for word in _LETTERS}, room // 8)
    room -= len(letters)
    words = _best({word: count for word, count in counts.items() if len(word) > 1}, room - room // 4)
    room -= len(words)
    starts, pieces = _best_pieces(counts, frozenset(words), room)
    return Vocabulary(punctuation, (*letters, *words, *starts), pieces)


_LETTERS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _count_words(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text))
    return counts


def _best(gains: dict[str, int], room: int) -> tuple[str, ...]:
    return tuple(sorted(gains, key=lambda item: (-gains[item], item))[:room])


def _best_pieces(counts: Counter[str], known: frozenset[str], room: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Choose the pieces of two or three letters that save the most tokens in words without a token of their own. Return
    those that begin a word, and those that continue one."""
    gains: Counter[tuple[bool, str]] = Counter()
    for word, count in counts.items():
        if word in known or len(word) < 2:
            continue
        for start in range(len(word) - 1):
            for length in (2, 3):
                piece = word[start : start + length]
                if len(piece) == length and not (start == 0 and piece in known):
                    gains[start == 0, piece] += count * (length - 1)
    chosen = sorted(gains, key=lambda item: (-gains[item], item))[:room]
    starts = tuple(piece for first, piece in chosen if first)
    return starts, tuple(piece for first, piece in chosen if not first)


def save_vocabulary(vocabulary: Vocabulary, path: Path) -> None:
    document = {
        "format": FORMAT,
        "punctuation": [[str(form), surface] for form, surface in vocabulary.punctuation],
        "words": list(vocabulary.words),
        "pieces": list(vocabulary.pieces),
    }
    write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode())


def load_vocabulary(path: Path) -> Vocabulary:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TokenizerError(f"cannot read tokenizer {path}: {error.strerror}") from error
    except ValueError as error:
        raise TokenizerError(f"tokenizer {path} is not JSON: {error}") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise TokenizerError(f"tokenizer {path}: expected format {FORMAT!r}, found {found!r}; train it again")
    try:
        vocabulary = Vocabulary(
            tuple((Form(form), str(surface)) for form, surface in document["punctuation"]),
            tuple(str(word) for word in document["words"]),
            tuple(str(piece) for piece in document["pieces"]),
        )
        tokens = vocabulary.tokens()
    except (KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"tokenizer {path} is damaged: {error!r}") from error
    if len(set(tokens)) != len(tokens):
        raise TokenizerError(f"tokenizer {path} is damaged: a token occurs twice")
    return vocabulary
