"""The tokenizer of a published model (Hugging Face's `tokenizer.json`), with the interface that chat formats need.

The file lists added tokens such as `<|im_end|>` and `<tool_call>`, which the `tokenizers` library would recognise in
any text. The class here encodes text without them, so that no text produces a special token; formats insert them by id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from etude.text.vocabulary import TokenizerError


class PretrainedTokenizer:
    """A published model's tokenizer, run by the library `tokenizers` (`pip install 'etude[formats]'`)."""

    def __init__(self, data: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self._special = {str(token["content"]): int(token["id"]) for token in data.get("added_tokens", [])}
        self._names = {token: name for name, token in self._special.items()}
        self._plain = Tokenizer.from_str(json.dumps(data | {"added_tokens": [], "post_processor": None}))

    @staticmethod
    def load(path: Path) -> PretrainedTokenizer:
        """Load a tokenizer; `path` is its tokenizer.json or the model's folder. Raises TokenizerError."""
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise TokenizerError(f"cannot read tokenizer {file}: {error.strerror}") from error
        except ValueError as error:
            raise TokenizerError(f"tokenizer {file} is not JSON: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
            raise TokenizerError(f"{file} is not a tokenizer: expected the tokenizer.json of a Hugging Face model")
        try:
            return PretrainedTokenizer(data)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise TokenizerError(f"tokenizer {file} cannot be used: {error}") from error

    def encode(self, text: str) -> list[int]:
        # Lone surrogates, which UTF-8 cannot represent, become "?".
        found = self._plain.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)
        return list(found.ids)

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

    def special(self, name: str) -> int | None:
        return self._special.get(name)
