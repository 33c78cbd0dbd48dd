"""The chat format of Kimi-K2: a role token, a name and `<|im_middle|>` begin a message; the calls of a turn are in a
section and have ids.

Source: chat_template.jinja of moonshotai/Kimi-K2-Instruct on Hugging Face, and docs/tool_call_guidance.md of
MoonshotAI/Kimi-K2 for the ids: `functions.name:number`, where the number counts the calls of the conversation. Tools
are declared with sorted keys and without spaces, as the model's own tokenizer code does before it renders the template.

With `thinking=True` a turn follows the template of moonshotai/Kimi-K2-Thinking, which writes `<think></think>` even if
there was no thinking. At the next user message that template drops the thinking of all turns up to and including the
last turn without calls. This format does so only with `history="template"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Literal

from etude.text.calls import Arguments, CallSchema
from etude.text.format import Exchange, TokenizerLike
from etude.text.formats.grammar import Grammar
from etude.text.formats.json_calls import read_arguments, write_object
from etude.text.formats.marked import END_THINK, THINK, MarkedFormat
from etude.text.formats.marks import Piece
from etude.text.vocabulary import TokenizerError

SYSTEM, USER, ASSISTANT = "<|im_system|>", "<|im_user|>", "<|im_assistant|>"
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
SECTION, END_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, END_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."
_ID = re.compile(r"\s*functions\.([^:\s]+):([0-9]{1,9})\s*")


class KimiK2Format(MarkedFormat):
    NAMES = (SYSTEM, USER, ASSISTANT, MIDDLE, END, SECTION, END_SECTION, CALL, ARGUMENTS, END_CALL)
    OPTIONAL = (THINK, END_THINK)

    def __init__(
        self,
        tokenizer: TokenizerLike,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = False,
        history: Literal["sampled", "template"] = "sampled",
    ) -> None:
        self._thinking = thinking
        self._history = history
        super().__init__(tokenizer, tools)
        if thinking and self.grammar.think is None:
            raise TokenizerError(
                "the tokenizer has no token <think>: use the tokenizer of Kimi-K2-Thinking, or thinking=False"
            )

    def _grammar(self) -> Grammar:
        return Grammar(
            stop=(self.marks[END],),
            call=(self.marks[CALL], self.marks[END_CALL]),
            section=(self.marks[SECTION], self.marks[END_SECTION]),
            separator=(ARGUMENTS, self.marks[ARGUMENTS]),
            think=self.marks.pair(THINK, END_THINK),
            empty_think=self._thinking,
        )

    def _assistant(self) -> list[Piece]:
        return [self.marks[ASSISTANT], "assistant", self.marks[MIDDLE]]

    def _system(self, system: str) -> list[Piece]:
        declared = json.dumps(self.tools, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        tools = self._message(SYSTEM, "tool_declare", declared) if self.tools else []
        return [*tools, *self._message(SYSTEM, "system", system)]

    def _without_system(self) -> list[Piece]:
        # The template's words, byte for byte, with the line end after them.
        return [*self._system(_DEFAULT_SYSTEM), "\n"]

    def _user(self, text: str) -> list[Piece]:
        return self._message(USER, "user", text)

    def _later_system(self, text: str) -> list[Piece]:
        return self._message(SYSTEM, "system", text)

    def _tool(self, outputs: Sequence[str], calls: Sequence[str]) -> list[Piece]:
        if calls and len(calls) != len(outputs):
            raise ValueError(f"{len(outputs)} outputs for {len(calls)} calls: expected one each")
        pieces: list[Piece] = []
        for output, raw in zip(outputs, calls or repeat(""), strict=False):
            written = raw.partition(ARGUMENTS)[0]
            pieces += self._message(SYSTEM, self.call_name(raw) or "tool", f"## Return of {written}\n{output}")
        return [*pieces, *self._assistant()]

    def _message(self, role: str, name: str, text: str) -> list[Piece]:
        return [self.marks[role], name, self.marks[MIDDLE], text, self.marks[END]]

    def recall(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        if self._history == "sampled" or not self._thinking:
            return list(exchanges)
        plain = [place for place, (_, sampled) in enumerate(exchanges) if not self.parse(sampled).calls]
        past = plain[-1] + 1 if plain else 0
        return [*map(self._forget_thinking, exchanges[:past]), *exchanges[past:]]

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        written, found, text = raw.partition(ARGUMENTS)
        identity = _ID.fullmatch(written)
        if not found or identity is None:
            return "the call does not begin with functions.name:number and its arguments"
        return read_arguments(identity.group(1), text, schemas)

    def call_name(self, raw: str) -> str:
        identity = _ID.fullmatch(raw.partition(ARGUMENTS)[0])
        return identity.group(1) if identity else ""

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        return f"functions.{name}:{number}{ARGUMENTS}{write_object(arguments)}"
