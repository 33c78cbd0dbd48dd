"""Étude's own tokenizer. Tokens are words, pieces of words and bytes; most single spaces have no token (see `spacing`).

Invariants:
- decode(encode(text)) == text for every text of Unicode scalar values (a lone surrogate becomes "?").
- encode never returns a special token, whatever the text says; `<|end|>` in a file is plain text.
- Each line is encoded on its own, and so is text after a special token. A line therefore has the same tokens wherever
  it occurs, and a name has the same tokens in a listing, in a message and in a call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from etude.text.spacing import SPACE_EXPECTED, Form, Right, sides
from etude.text.vocabulary import (
    ATOM,
    SPECIALS,
    TokenizerError,
    Vocabulary,
    learn,
    load_vocabulary,
    save_vocabulary,
)

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGITS = frozenset("0123456789")
_ALPHANUMERIC = _LETTERS | _DIGITS
_STRING_PREFIXES = frozenset(("f", "b", "r", "u", "rb", "br", "fr", "rf", "F", "B", "R", "U"))
_BEFORE_OPENING_QUOTE = frozenset("([{=,:<>+-*/%!&|^~@;")
_CACHED_LINES = 1 << 15

_Parts = list[tuple[str, str]]
"""A line split into atoms (words, numbers, operators): pairs of the spaces before an atom and the atom. The last atom
is empty."""


@dataclass(frozen=True, slots=True)
class Special:
    """Ids of the special tokens, the same in every vocabulary."""

    pad: int
    bos: int
    system: int
    user: int
    assistant: int
    tool: int
    call: int
    think: int
    end: int


SPECIAL = Special(**{name: place for place, name in enumerate(SPECIALS)})


class Tokenizer:
    special = SPECIAL

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        tokens = vocabulary.tokens()
        self.vocab_size = len(tokens)
        """Number of ids; less than requested if the training texts had too few words."""
        self._surface = [token.surface for token in tokens]
        both = [sides(token.form, token.surface) for token in tokens]
        self._left = [left for left, _ in both]
        self._right = [right for _, right in both]
        ids: dict[Form, dict[str, int]] = {form: {} for form in Form}
        for place, token in enumerate(tokens):
            if token.form is not Form.BYTE:
                ids[token.form][token.surface.decode()] = place
        self._byte = [len(SPECIALS) + value for value in range(256)]
        self._glue = ids[Form.GLUE][""]
        self._words, self._pieces, self._numbers = ids[Form.WORD], ids[Form.PIECE], ids[Form.NUMBER]
        self._spaced, self._trailed = ids[Form.SPACED], ids[Form.TRAILED]
        self._opening, self._closing = ids[Form.OPENING], ids[Form.CLOSING]
        self._leading, self._joined = ids[Form.LEADING], ids[Form.JOINED]
        self._runs = {1: self._byte[0x20]} | {len(run): place for run, place in ids[Form.RUN].items()}
        self._longest_word = max((len(word) for word in self._words), default=1)
        # Caches per instance: a generated corpus repeats most of its lines, and any text repeats most of its words.
        self._line = lru_cache(maxsize=_CACHED_LINES)(self._encode_line)
        self._word = lru_cache(maxsize=_CACHED_LINES)(self._spell_word)
        self._continuation = lru_cache(maxsize=_CACHED_LINES)(self._spell_continuation)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Vocabulary]]:
        return Tokenizer, (self.vocabulary,)

    @staticmethod
    def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
        return Tokenizer(learn(texts, vocab_size))

    @staticmethod
    def load(path: Path) -> Tokenizer:
        return Tokenizer(load_vocabulary(path))

    def save(self, path: Path) -> None:
        save_vocabulary(self.vocabulary, path)

    def encode(self, text: str) -> list[int]:
        newline = self._byte[0x0A]
        ids: list[int] = []
        for place, line in enumerate(text.split("\n")):
            if place:
                ids.append(newline)
            if line:
                ids.extend(self._line(line))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of any ids. Special tokens become markers; bytes that are not UTF-8 become U+FFFD."""
        left, rights, surface = self._left, self._right, self._surface
        text = bytearray()
        right = Right.START
        for token in ids:
            if SPACE_EXPECTED[right][left[token]]:
                text += b" "
            text += surface[token]
            right = rights[token]
        return text.decode("utf-8", errors="replace")

    @property
    def identity(self) -> str:
        return hashlib.sha256(repr(self.vocabulary).encode()).hexdigest()

    def documents(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of whole training documents."""
        return ([SPECIAL.bos, *self.encode(text), SPECIAL.end] for text in texts)

    def text(self, document: Iterable[int]) -> str:
        """Return the text of a document's ids, without its special tokens."""
        return self.decode(token for token in document if token >= len(SPECIALS))

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def label(self, token: int) -> str:
        """Return a readable name of one token, for debugging and displays."""
        if not 0 <= token < self.vocab_size:
            raise TokenizerError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        if token == self._glue:
            return "<glue>"
        surface = self._surface[token]
        try:
            return surface.decode()
        except UnicodeDecodeError:
            return f"<0x{surface.hex()}>"

    def _encode_line(self, line: str) -> tuple[int, ...]:
        parts: _Parts = ATOM.findall(line)
        ids: list[int] = []
        right = Right.START
        for place, (gap, atom) in enumerate(parts):
            atom_ids = self._encode_atom(parts, place) if atom else ()
            expected = bool(atom_ids) and SPACE_EXPECTED[right][self._left[atom_ids[0]]]
            if len(gap) != expected:
                ids.extend(self._spaces(len(gap)) if gap else (self._glue,))
            if atom_ids:
                ids.extend(atom_ids)
                right = self._right[atom_ids[-1]]
        return tuple(ids)

    def _encode_atom(self, parts: _Parts, place: int) -> tuple[int, ...]:
        """Encode the atom (a word, number or operator) at index `place` of a line. The result depends only on this atom
        and on the atoms that it touches without a space."""
        gap, atom = parts[place]
        touching = parts[place - 1][1] if place and not gap else ""
        first = atom[0]
        if first in _LETTERS:
            return self._continuation(atom) if touching[-1:] in _ALPHANUMERIC and touching else self._word(atom)
        if first in _DIGITS:
            return self._number(atom, continues=bool(touching) and touching[-1] in _ALPHANUMERIC)
        if first == "_":
            return self._underscores(atom, continues=bool(touching) and touching[-1] in _ALPHANUMERIC)
        token: int | None = None
        if atom in self._opening or atom in self._closing:
            token = self._quote(parts, place, touching)
        else:
            next_gap, next_atom = parts[place + 1]
            if next_gap or not next_atom:
                token = self._trailed.get(atom)
                if token is None and not touching:
                    token = self._spaced.get(atom)
        return (token,) if token is not None else self._bytes(atom)

    def _quote(self, parts: _Parts, place: int, touching: str) -> int | None:
        """Return the token of an opening or a closing quote, chosen mainly by the atom before it (`touching`; "" after
        a space). Return None for a quote that is encoded as bytes, such as an apostrophe or the opening quote of a
        prefixed string."""
        atom = parts[place][1]
        next_gap, next_atom = parts[place + 1]
        if not touching or touching[-1] in _BEFORE_OPENING_QUOTE:
            return self._opening.get(atom)
        if atom == "'" and touching[-1] in _LETTERS and not next_gap and next_atom[:1] in _LETTERS and next_atom:
            return None if touching not in _STRING_PREFIXES else self._prefixed_or_closing(parts, place)
        if touching in _STRING_PREFIXES:
            return self._prefixed_or_closing(parts, place)
        return self._closing.get(atom)

    def _prefixed_or_closing(self, parts: _Parts, place: int) -> int | None:
        """Return the token of a quote after letters such as `f`, a possible string prefix. In `f"` the quote opens a
        prefixed string and has no token of its own (None); in `"f"` it closes a string."""
        gap_before_prefix = parts[place - 1][0]
        before_prefix = parts[place - 2][1] if place > 1 and not gap_before_prefix else ""
        return self._closing.get(parts[place][1]) if before_prefix[-1:] in ('"', "'") else None

    def _underscores(self, atom: str, *, continues: bool) -> tuple[int, ...]:
        ids: list[int] = []
        while atom:
            forms = self._joined if continues else self._leading
            width = 2 if len(atom) > 1 and "__" in forms else 1
            ids.append(forms.get(atom[:width], self._byte[0x5F]))
            atom, continues = atom[width:], True
        return tuple(ids)

    def _number(self, atom: str, *, continues: bool) -> tuple[int, ...]:
        """Encode digits: one token for a leading number 0-99, a byte for every further digit. Digits that continue a
        word are all bytes."""
        if continues:
            return self._bytes(atom)
        width = 1 if atom[0] == "0" else min(2, len(atom))
        return (self._numbers[atom[:width]], *self._bytes(atom[width:]))

    def _spell_word(self, word: str) -> tuple[int, ...]:
        """Encode a word: its longest prefix that is a token, then pieces (tokens of two or three letters) and bytes."""
        for length in range(min(len(word), self._longest_word), 0, -1):
            token = self._words.get(word[:length])
            if token is not None:
                return (token, *self._spell_pieces(word[length:]))
        return self._spell_pieces(word)

    def _spell_continuation(self, word: str) -> tuple[int, ...]:
        """Encode letters that continue a name, such as `Case` in camelCase, as pieces (tokens of two or three letters)
        and bytes. If the letters are a word of the vocabulary and it is shorter, use the "no space" token and the
        word's."""
        spelled = self._spell_pieces(word)
        token = self._words.get(word)
        return spelled if token is None or len(spelled) <= 2 else (self._glue, token)

    def _spell_pieces(self, letters: str) -> tuple[int, ...]:
        ids: list[int] = []
        while letters:
            for length in (3, 2, 1):
                piece = letters[:length]
                token = self._byte[ord(piece)] if length == 1 else self._pieces.get(piece)
                if token is not None and len(piece) == length:
                    ids.append(token)
                    letters = letters[length:]
                    break
        return tuple(ids)

    def _spaces(self, width: int) -> Sequence[int]:
        ids: list[int] = []
        while width:
            longest = max(length for length in self._runs if length <= width)
            ids.append(self._runs[longest])
            width -= longest
        return ids

    def _bytes(self, atom: str) -> tuple[int, ...]:
        return tuple(self._byte[value] for value in atom.encode("utf-8", errors="replace"))
