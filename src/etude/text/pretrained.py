"""The tokenizer of a published model (Hugging Face's `tokenizer.json`), with the interface that chat formats need.

The file lists added tokens such as `<|im_end|>` and `<tool_call>`, which the `tokenizers` library would recognise in
any text. The class here encodes text without them, so that no text produces a special token; formats insert them by id.
Only byte-level vocabularies are supported, because only they can write every text and decode any ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from etude.text.byte_letters import LETTERS
from etude.text.tiktoken_file import FILE, convert
from etude.text.vocabulary import TokenizerError

ENDS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "[EOS]")
"""Tokens that end a document in pretraining, by which they are recognised. They come before the `eos_token` of
tokenizer_config.json, which instruct models set to the end of a turn."""

_BATCH = 1 << 20
"""Characters of the documents that are encoded at once."""
_UTF8 = frozenset((*range(0xC0), *range(0xC2, 0xF5)))
"""Bytes that occur in UTF-8."""
_REPLACEMENT = "\ufffd"
_NEEDED = frozenset((*b"\t\n\r", *range(0x20, 0x7F), *range(0x80, 0xC0), *_REPLACEMENT.encode()))
"""Bytes without which a vocabulary cannot write code."""


class PretrainedTokenizer:
    """A published model's tokenizer, run by the library `tokenizers` (`pip install 'etude[formats]'`)."""

    def __init__(self, text: str, settings: Mapping[str, Any] | None = None) -> None:
        """`text` is that of tokenizer.json, `settings` the content of tokenizer_config.json. Raises TokenizerError."""
        from tokenizers import Tokenizer

        whole = Tokenizer.from_str(text)
        self._special = _added(text, {token.content: i for i, token in whole.get_added_tokens_decoder().items()})
        self._names = {token: name for name, token in self._special.items()}
        # A second tokenizer around the same model: without added tokens, post-processor and truncation.
        self._plain = Tokenizer(whole.model)
        self._plain.normalizer, self._plain.pre_tokenizer = whole.normalizer, whole.pre_tokenizer
        self._plain.decoder = whole.decoder
        self._byte = _bytes_of(self._plain)
        self._bytes = bytes(self._byte)
        """Bytes that have a token. Small vocabularies lack those that their training texts did not have."""
        self._spelled = self._spell_special()
        self.vocab_size = max(self._plain.get_vocab_size(), max(self._names, default=-1) + 1)
        """Number of ids. A checkpoint may have more rows, as padding."""
        self._begin, self._end = _around(whole, settings or {}, self._special)
        self.identity = hashlib.sha256(f"{text}\0{self._begin} {self._end}".encode()).hexdigest()

    @staticmethod
    def load(path: Path) -> PretrainedTokenizer:
        """Load a tokenizer; `path` is its tokenizer.json or the model's folder. A folder may have a tiktoken file
        instead. Raises TokenizerError."""
        file = path / "tokenizer.json" if path.is_dir() else path
        text, settings = published_text(file), file.with_name("tokenizer_config.json")
        try:
            return PretrainedTokenizer(text, json.loads(_read(settings)) if settings.exists() else None)
        except ModuleNotFoundError:
            raise
        except TokenizerError as error:
            raise TokenizerError(f"tokenizer {file}: {error}") from error
        except Exception as error:  # the library raises nothing narrower
            raise TokenizerError(_problem(file, text, settings, error)) from error

    def encode(self, text: str) -> list[int]:
        return self._without_special(self._plain.encode(self._writable(text), add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        parts = []
        for special, group in groupby(map(int, ids), key=self._names.__contains__):
            run = list(group)
            parts.append(
                "".join(self._names[token] for token in run)
                if special
                else self._plain.decode(run, skip_special_tokens=False)
            )
        return "".join(parts)

    def encode_published(self, text: str) -> list[int]:
        """Return the ids of a template's own text, with special tokens for their names. Never use this for text from
        users, tools or models."""
        if not self._special:
            return self.encode(text)
        names = re.compile("|".join(map(re.escape, sorted(self._special, key=len, reverse=True))))
        ids: list[int] = []
        at = 0
        for found in names.finditer(text):
            ids += [*self.encode(text[at : found.start()]), self._special[found.group()]]
            at = found.end()
        return ids + self.encode(text[at:])

    def special(self, name: str) -> int | None:
        return self._special.get(name)

    def documents(self, texts: Iterable[str]) -> Iterator[list[int]]:
        if self._end is None:
            raise TokenizerError(
                f"the tokenizer has no token that ends a document: expected {', '.join(ENDS)} or the eos_token of "
                "tokenizer_config.json"
            )
        for batch in _batches(texts):
            for found in self._plain.encode_batch_fast(list(map(self._writable, batch)), add_special_tokens=False):
                yield [*self._begin, *self._without_special(found.ids), self._end]

    def text(self, document: Iterable[int]) -> str:
        return self.decode(token for token in map(int, document) if token not in self._names)

    def _writable(self, text: str) -> str:
        """Replace what the vocabulary cannot write: lone surrogates by "?", characters with a byte that it lacks by
        U+FFFD. The library would leave them out."""
        data = text.encode("utf-8", "replace")
        sound = data.decode()
        if not (lost := {*data.translate(None, self._bytes)}):
            return sound
        return "".join(letter if lost.isdisjoint(letter.encode()) else _REPLACEMENT for letter in sound)

    def _without_special(self, ids: list[int]) -> list[int]:
        if not self._spelled or self._spelled.keys().isdisjoint(ids):
            return list(ids)
        return list(chain.from_iterable(self._spelled.get(token, (token,)) for token in ids))

    def _spell_special(self) -> dict[int, tuple[int, ...]]:
        """Return the bytes of each special token that the model's own vocabulary holds too, and so could find in a
        text."""
        spelled = {}
        for name, token in self._special.items():
            found = self._plain.id_to_token(token)
            if found is None:
                continue
            if found not in (name, "".join(LETTERS[value] for value in name.encode())):
                raise TokenizerError(f"the id {token} is both of the special token {name!r} and of {found!r}")
            spelled[token] = tuple(self._byte[value] for value in name.encode())
        return spelled


def _added(text: str, given: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of the added tokens that a tokenizer.json lists. `given` are those that the library gives them:
    it numbers them anew, so a file that lists other ids does not say what the model was trained with."""
    # A list of this name is never part of the vocabulary, whose values are numbers. Reading all of the file here would
    # take hundreds of MB for a vocabulary of 200,000 tokens, which the library reads by itself.
    places = re.finditer(r'"added_tokens"\s*:\s*(?=\[)', text)
    listed = [token for place in places for token in json.JSONDecoder().raw_decode(text, place.end())[0]]
    names, ids = (Counter(token[key] for token in listed) for key in ("content", "id"))
    for what, counts in (("token", names), ("id", ids)):
        if twice := [value for value, count in counts.items() if count > 1]:
            raise TokenizerError(f"its added tokens have the {what} {twice[0]!r} twice")
    for token in listed:
        if given.get(token["content"]) != token["id"]:
            raise TokenizerError(
                f"its added token {token['content']!r} has the id {token['id']}, but {given.get(token['content'])} in "
                "the library `tokenizers`, which numbers those outside the vocabulary without gaps: correct the file"
            )
    return {token["content"]: token["id"] for token in listed}


def _bytes_of(plain: Any) -> dict[int, int]:
    """Return the token of each byte that has one."""
    from tokenizers.decoders import ByteLevel

    found = {value: plain.token_to_id(LETTERS[value]) for value in sorted(_UTF8)}
    tokens = {value: token for value, token in found.items() if token is not None}
    missing = sorted(_NEEDED - tokens.keys())
    if not isinstance(plain.decoder, ByteLevel) or missing:
        raise TokenizerError(
            "its vocabulary is not byte-level, so it cannot write every text: expected the decoder ByteLevel and a "
            "token for each byte of printable characters" + (f", found none for 0x{missing[0]:02x}" if missing else "")
        )
    return tokens


def _around(whole: Any, settings: Mapping[str, Any], special: Mapping[str, int]) -> tuple[list[int], int | None]:
    """Return the ids before a document and the id after it, as in the model's pretraining: the first as the folder's
    settings say or else its post-processor adds them, the second by its name."""
    named = {key: special.get(token_name(settings.get(key))) for key in ("bos_token", "eos_token")}
    end = next((special[name] for name in ENDS if name in special), named["eos_token"])
    if "add_bos_token" in settings:
        bos = named["bos_token"]
        return ([bos] if settings["add_bos_token"] and bos is not None else []), end
    whole.no_truncation()
    ids, plain = (whole.encode("a", add_special_tokens=added).ids for added in (True, False))
    return ids[: ids.index(plain[0])], end


def token_name(entry: Any) -> str:
    """Return the text of a special token as tokenizer_config.json names it: by itself, or with its properties."""
    return str(entry.get("content", "")) if isinstance(entry, dict) else str(entry or "")


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def published_text(file: Path) -> str:
    """Return the text of a tokenizer.json, made from the tiktoken file beside it if there is none."""
    if not file.exists() and file.with_name(FILE).is_file():
        return convert(file.parent)
    return _read(file)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise TokenizerError(f"cannot read tokenizer {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"tokenizer {file} is not JSON: {error}") from error


def _problem(file: Path, text: str, settings: Path, error: Exception) -> str:
    """Say in one line why a tokenizer could not be loaded."""
    try:
        data = json.loads(text)
    except ValueError as malformed:
        return f"tokenizer {file} is not JSON: {malformed}"
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        return f"{file} is not a tokenizer: expected the tokenizer.json of a Hugging Face model"
    if isinstance(error, json.JSONDecodeError):
        return f"{settings} is not JSON: {error}"
    return f"tokenizer {file} cannot be used: {error}"
