"""Vocabularies in tiktoken's format, as Kimi's models bring them, and the tokenizer.json that encodes alike.

A tiktoken file lists the bytes and the rank of each token. To encode a piece of text, tiktoken takes it whole if it is
a token, else joins the two neighbours whose union has the lowest rank until none has one. A tokenizer.json lists merges
instead. For each token that is the union in which joining its own bytes ends, which gives the same ids for every text.

The pattern that cuts text into pieces is not in the file but in code that comes with it and is never run here, so only
the tokenizer whose pattern stands here is read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.text.byte_letters import LETTERS
from etude.text.vocabulary import TokenizerError

FILE = "tiktoken.model"
_CLASS = "TikTokenTokenizer"
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = (rf"[\p{{{kind}}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for kind in (r"Lu}\p{Lt", "Ll"))
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""What Kimi's models take for a piece of text: Chinese characters, words with one sign before them, up to three digits,
signs, space."""
_LONGEST = 512
"""Most bytes of a token. The longest of published vocabularies are runs of 128 spaces."""
_MOST_SPECIAL = 10_000


def tokenizer_json(ranks: Mapping[bytes, int], special: Mapping[int, str], pattern: str) -> str:
    """Return a tokenizer.json for tokens by rank, which must be 0, 1, 2, and so on, and special tokens after them."""
    merges = [" ".join(map(_spelled, halves)) for token in ranks if (halves := _halves(token, ranks)) is not None]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_to_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{"id": i, "content": name, **added} for i, name in sorted(special.items())],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_to_letters]},
            "post_processor": None,
            "decoder": bytes_to_letters,
            "model": {
                "type": "BPE",
                "ignore_merges": True,
                "vocab": {_spelled(token): rank for token, rank in ranks.items()},
                "merges": merges,
            },
        },
        ensure_ascii=False,
    )


def convert(folder: Path) -> str:
    """Return the text of a tokenizer.json for a model's folder that has a tiktoken file instead. Raises
    TokenizerError."""
    file, settings = folder / FILE, folder / "tokenizer_config.json"
    said = _settings(settings)
    if (kind := said.get("tokenizer_class")) != _CLASS:
        raise TokenizerError(f"{file}: the tokenizer's class is {kind!r}; of tiktoken files only {_CLASS}'s are read")
    ranks = read_ranks(file)
    try:
        listed = said.get("added_tokens_decoder") or {}
        named = {int(number): str(token["content"]) for number, token in listed.items()}
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise TokenizerError(f"{settings}: added_tokens_decoder does not name tokens by their ids") from error
    last = max(named, default=-1)
    if named and (min(named) < len(ranks) or last > len(ranks) + _MOST_SPECIAL):
        raise TokenizerError(f"{settings} adds the ids {min(named)} to {last} to a vocabulary of {len(ranks)}")
    special = range(len(ranks), last + 1)
    # Ids without a name are reserved, under the names that the tokenizer's own code gives them.
    return tokenizer_json(ranks, {i: named.get(i, f"<|reserved_token_{i}|>") for i in special}, PATTERN)


def read_ranks(file: Path) -> dict[bytes, int]:
    """Return the tokens of a tiktoken file in the order of their ranks."""
    ranks: dict[bytes, int] = {}
    try:
        for line in filter(bytes.strip, file.read_bytes().splitlines()):
            token, rank = line.split()
            found = base64.b64decode(token, validate=True)
            if found in ranks or not 0 < len(found) <= _LONGEST or int(rank) != len(ranks):
                raise ValueError
            ranks[found] = len(ranks)
    except OSError as error:
        raise TokenizerError(f"cannot read tokenizer {file}: {error.strerror}") from error
    except ValueError as error:
        raise TokenizerError(
            f"{file}: expected after {len(ranks)} tokens another one in base64, not longer than {_LONGEST} bytes, and "
            f"its rank {len(ranks)}"
        ) from error
    return ranks


def _settings(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{FILE} needs a {file.name} beside it, in {file.parent}: {error}") from error
    return found if isinstance(found, dict) else {}


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes] | None:
    """Return the two tokens that are joined last when a token is made of its bytes; None for a byte, and for tokens
    that no joining makes."""
    parts, none = [token[i : i + 1] for i in range(len(token))], len(ranks)
    while len(parts) > 2:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], none), i) for i in range(len(parts) - 1))
        if rank == none:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _spelled(token: bytes) -> str:
    return "".join(LETTERS[value] for value in token)
