"""Small tokenizers that know the special tokens of every format: one of letters, one with pairs merged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import Split

from etude.text.formats import deepseek_v3, glm45, kimi_k2, llama3, qwen3
from etude.text.formats.marked import END_THINK, THINK
from etude.text.pretrained import PretrainedTokenizer

SPECIALS = tuple(
    dict.fromkeys(
        (
            *qwen3.Qwen3Format.NAMES,
            *kimi_k2.KimiK2Format.NAMES,
            *deepseek_v3.DeepSeekV3Format.NAMES,
            *glm45.GLM45Format.NAMES,
            *llama3.Llama3Format.NAMES,
            THINK,
            END_THINK,
        )
    )
)

_SAID = """
You mend code. I read both files.

# Tools

You may call one or more functions to assist with the user query.
<tools> {"type": "function", "function": {"name": "read", "description": "Show a file."}} </tools>
system user assistant tool_declare function functions.read:0 ```json {"path": "calc.py"} ```
"""


class Letters:
    """A token per byte. Any id decodes."""

    def __init__(self, specials: Iterable[str] = SPECIALS) -> None:
        self._ids = {name: 256 + place for place, name in enumerate(specials)}
        self._names = {token: name for name, token in self._ids.items()}
        self.size = 256 + len(self._ids)

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(
            self._names[token].encode() if token in self._names else bytes([token]) for token in ids
        ).decode("utf-8", "replace")

    def special(self, name: str) -> int | None:
        return self._ids.get(name)


@cache
def merged_file() -> dict[str, Any]:
    """A tokenizer.json as published models have it: byte pairs, and added tokens that its library finds in any text."""
    tokenizer = Tokenizer(models.BPE())
    # As in published vocabularies, signs and the line ends behind them may be one token.
    words = Split(Regex(r"[^\s\p{L}\p{N}]+[\r\n]*| ?\p{L}+|\p{N}|\s+"), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    # Signs before line ends, so that tokens reach over the places where one piece of a template meets the next.
    joined = ["x".join([end] * 40) for end in (".\n\n", ".\n", ">\n", "\n\n", "}\n", ")\n", ">\n\n")]
    tokenizer.train_from_iterator([_SAID, *joined] * 5, trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    data: dict[str, Any] = json.loads(tokenizer.to_str())
    return data


@cache
def merged() -> PretrainedTokenizer:
    return PretrainedTokenizer(json.dumps(merged_file()))


def markers(tokenizer: Letters | PretrainedTokenizer, ids: Iterable[int]) -> list[str]:
    """The special tokens among the ids, by name."""
    names = {tokenizer.special(name): name for name in SPECIALS}
    return [names[token] for token in ids if token in names]
