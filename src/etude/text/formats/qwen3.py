"""The chat format of Qwen3: messages between `<|im_start|>` and `<|im_end|>`, calls as JSON in `<tool_call>`, thinking
in `<think>`.

Source: the chat template in tokenizer_config.json of Qwen/Qwen3-8B on Hugging Face.

The template rewrites history: once the user sends another message, it drops the thinking of all earlier turns. By
default this format keeps earlier thinking: each prompt extends the last one, and every token is trained on in the
context in which it was sampled. With `history="template"` the template is followed exactly: `recall` drops the
thinking, and the caller has to begin a new trace segment with the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from etude.text.calls import Arguments, CallSchema
from etude.text.format import Exchange, TokenizerLike
from etude.text.formats.grammar import Grammar
from etude.text.formats.json_calls import name_in, read_object, unknown, write_object
from etude.text.formats.marked import END_THINK, THINK, MarkedFormat
from etude.text.formats.marks import Piece

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
RESPONSE, END_RESPONSE = "<tool_response>", "</tool_response>"

# The template's wording, byte for byte: the model was trained on it.
_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_CALLING = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_NO_THINKING = "<think>\n\n</think>\n\n"


class Qwen3Format(MarkedFormat):
    """The chat format of Qwen3. With `thinking=False` each prompt ends with an empty thinking block, as in the template
    with enable_thinking=False."""

    NAMES: ClassVar[tuple[str, ...]] = (
        START,
        END,
        END_OF_TEXT,
        CALL,
        END_CALL,
        RESPONSE,
        END_RESPONSE,
        THINK,
        END_THINK,
    )

    def __init__(
        self,
        tokenizer: TokenizerLike,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = True,
        history: Literal["sampled", "template"] = "sampled",
    ) -> None:
        self._thinking = thinking
        self._history = history
        super().__init__(tokenizer, tools)

    def _grammar(self) -> Grammar:
        return Grammar(
            stop=self.marks.present(END, END_OF_TEXT),
            call=self.marks.pair(CALL, END_CALL) or (CALL, END_CALL),
            think=self.marks.pair(THINK, END_THINK),
            around_thinking="\n",
            after_thinking="\n\n",
            before_first_call="\n",
            between_calls="\n",
        )

    def _header(self) -> list[Piece]:
        return [self.marks[START], "assistant\n"]

    def _assistant(self) -> list[Piece]:
        return self._header() if self._thinking else [*self._header(), *self.marks.published(_NO_THINKING)]

    def _after_turn(self) -> list[Piece]:
        return ["\n"]

    def _system(self, system: str) -> list[Piece]:
        return [self.marks[START], "system\n" + system, *self._declared(), self.marks[END], "\n"]

    def _without_system(self) -> list[Piece]:
        if not self.tools:
            return []
        return [self.marks[START], "system\n", *self._declared()[1:], self.marks[END], "\n"]

    def _declared(self) -> list[Piece]:
        if not self.tools:
            return []
        declared = "".join("\n" + write_object(tool) for tool in self.tools)
        return ["\n\n", *self.marks.published(_TOOLS), declared, *self.marks.published(_CALLING)]

    def _user(self, text: str) -> list[Piece]:
        return [self.marks[START], "user\n" + text, self.marks[END], "\n"]

    def _later_system(self, text: str) -> list[Piece]:
        return [self.marks[START], "system\n" + text, self.marks[END], "\n"]

    def _tool(self, outputs: Sequence[str], calls: Sequence[str]) -> list[Piece]:
        pieces: list[Piece] = [self.marks[START], "user"]
        for output in outputs:
            begin, end = (self.marks.published(mark) for mark in (RESPONSE, END_RESPONSE))
            pieces += ["\n", *begin, "\n" + output + "\n", *end]
        return [*pieces, self.marks[END], "\n", *self._assistant()]

    def recall(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        if self._history == "sampled":
            return list(exchanges)
        header = self.marks.ids(self._header())
        return [
            self._forget_thinking(Exchange(_replace_end(given, self.answering, header), sampled))
            for given, sampled in exchanges
        ]

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        call = read_object(raw, "the call is")
        if isinstance(call, str):
            return call
        name, arguments = call.get("name"), call.get("arguments")
        if not isinstance(name, str):
            return "the call has no name"
        problem = unknown(name, schemas)
        if problem is not None:
            return problem
        return (name, arguments) if isinstance(arguments, dict) else f"{name}: arguments must be a JSON object"

    def call_name(self, raw: str) -> str:
        call = read_object(raw, "")
        name = call.get("name") if isinstance(call, dict) else name_in(raw)
        return name if isinstance(name, str) else ""

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        return "\n" + write_object({"name": name, "arguments": dict(arguments)}) + "\n"


def _replace_end(ids: Sequence[int], end: Sequence[int], other: Sequence[int]) -> list[int]:
    held = list(ids)
    return held[: len(held) - len(end)] + list(other) if tuple(held[-len(end) :]) == tuple(end) else held
