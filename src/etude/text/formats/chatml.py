"""The chat format of Qwen2.5, and the same for models whose vocabulary has no tokens for the marks of a call.

Source: the chat template in tokenizer_config.json of Qwen/Qwen2.5-7B-Instruct on Hugging Face. It writes messages and
calls as Qwen3's does, has no thinking, never rewrites history, and has a system prompt of its own where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from etude.text.calls import CallSchema
from etude.text.format import TokenizerLike
from etude.text.formats.marked import END_THINK, THINK
from etude.text.formats.marks import Piece
from etude.text.formats.qwen3 import (
    CALL,
    END,
    END_CALL,
    END_OF_TEXT,
    END_RESPONSE,
    RESPONSE,
    START,
    Qwen3Format,
)

# The template's wording, byte for byte.
_DEFAULT_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


class Qwen25Format(Qwen3Format):
    """The chat format of Qwen2.5. Tool outputs are between `<tool_response>` tags, which are tokens only in later
    vocabularies; thinking is written as Qwen3 does, if there are tokens for it."""

    NAMES: ClassVar[tuple[str, ...]] = (START, END, END_OF_TEXT, CALL, END_CALL)
    OPTIONAL: ClassVar[tuple[str, ...]] = (RESPONSE, END_RESPONSE, THINK, END_THINK)

    def __init__(self, tokenizer: TokenizerLike, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(tokenizer, tools)

    def _without_system(self) -> list[Piece]:
        return self._system(_DEFAULT_SYSTEM)


class ChatMLFormat(Qwen25Format):
    """Qwen2.5's chat format with all tags of calls and outputs as plain text, for any vocabulary with `<|im_start|>`
    and `<|im_end|>`. A message that spells the tag of a call holds a call."""

    NAMES = (START, END)
    OPTIONAL = (END_OF_TEXT, THINK, END_THINK)

    def _without_system(self) -> list[Piece]:
        return Qwen3Format._without_system(self)

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        # In JSON the tag can only be part of a string, where its first letter may be escaped.
        raw = super().format_call(name, arguments, schema, number)
        return raw.replace(END_CALL, "\\u003c" + END_CALL[1:])
