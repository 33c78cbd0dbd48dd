"""The chat formats of DeepSeek-V3 and V3.1. One special token marks a user message and one an assistant turn; after
tool outputs the assistant continues without such a token.

Sources: the chat templates of deepseek-ai/DeepSeek-V3 and DeepSeek-V3.1 on Hugging Face; for V3.1's tools, which its
template leaves to the caller, the section ToolCall of its model card.

V3's template is inconsistent, so it cannot always be followed. A prompt after tool outputs ends with
`<｜tool▁outputs▁end｜>`; but if the model then calls again, later prompts render that turn after `<｜Assistant｜>` and
without `<｜tool▁outputs▁end｜>`. Also, the template writes `<｜tool▁outputs▁begin｜>` only before the first outputs
of a conversation. This format keeps what the model saw when it sampled, and always writes the begin token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from etude.text.calls import Arguments, CallSchema
from etude.text.formats.grammar import Grammar
from etude.text.formats.json_calls import read_arguments, write_object
from etude.text.formats.marked import END_THINK, THINK, MarkedFormat
from etude.text.formats.marks import Piece

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
SECTION, END_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
OUTPUTS, END_OUTPUTS = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
OUTPUT, END_OUTPUT = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"

_FENCE, _END_FENCE = "```json\n", "\n```"

# The model card's wording, byte for byte.
_TOOLS = "## Tools\nYou have access to the following tools:\n"
_CALLING = (
    "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    "{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\n"
    "Where:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n"
)


class DeepSeekV3Format(MarkedFormat):
    """The format of DeepSeek-V3. Its template cannot declare tools, so the system prompt has to name them. The template
    has no thinking either; this format writes thinking as DeepSeek-R1 does, which has the same tokenizer."""

    NAMES: ClassVar[tuple[str, ...]] = (
        *(BEGIN, END, USER, ASSISTANT, SECTION, END_SECTION, CALL, SEPARATOR, END_CALL),
        *(OUTPUTS, END_OUTPUTS, OUTPUT, END_OUTPUT),
    )
    OPTIONAL: ClassVar[tuple[str, ...]] = (THINK, END_THINK)

    def _grammar(self) -> Grammar:
        return Grammar(
            stop=(self.marks[END],),
            call=(self.marks[CALL], self.marks[END_CALL]),
            section=(self.marks[SECTION], self.marks[END_SECTION]),
            separator=(SEPARATOR, self.marks[SEPARATOR]),
            think=self.marks.pair(THINK, END_THINK),
            around_thinking="\n",
            after_thinking="\n\n",
            between_calls="\n",
        )

    def _assistant(self) -> list[Piece]:
        return [self.marks[ASSISTANT]]

    def _system(self, system: str) -> list[Piece]:
        return [self.marks[BEGIN], system]

    def _without_system(self) -> list[Piece]:
        return self._system("")

    def _user(self, text: str) -> list[Piece]:
        return [self.marks[USER], text]

    def _tool(self, outputs: Sequence[str], calls: Sequence[str]) -> list[Piece]:
        pieces: list[Piece] = []
        for output in outputs:
            pieces += [self.marks[OUTPUT], output, self.marks[END_OUTPUT]]
        return [self.marks[OUTPUTS], *pieces, self.marks[END_OUTPUTS]]

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        kind, found, rest = raw.partition(SEPARATOR)
        name, _, fenced = rest.partition("\n")
        fenced = fenced.strip()
        if not found or kind.strip() != "function" or not (fenced.startswith(_FENCE) and fenced.endswith(_END_FENCE)):
            return "the call is not a name and its arguments in a json fence"
        return read_arguments(name.strip(), fenced[len(_FENCE) : -len(_END_FENCE)], schemas)

    def call_name(self, raw: str) -> str:
        return raw.partition(SEPARATOR)[2].partition("\n")[0].strip()

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        return f"function{SEPARATOR}{name}\n{_FENCE}{write_object(arguments)}{_END_FENCE}"


class DeepSeekV31Format(DeepSeekV3Format):
    """The format of DeepSeek-V3.1 in non-thinking mode, the only mode with tool calls. Prompts end with `</think>`."""

    NAMES = tuple(name for name in (*DeepSeekV3Format.NAMES, THINK, END_THINK) if name not in (OUTPUTS, END_OUTPUTS))
    OPTIONAL = ()

    def _grammar(self) -> Grammar:
        return replace(super()._grammar(), around_thinking="", after_thinking="", between_calls="")

    def _assistant(self) -> list[Piece]:
        return [self.marks[ASSISTANT], self.marks[END_THINK]]

    def _system(self, system: str) -> list[Piece]:
        if not self.tools:
            return [self.marks[BEGIN], system]
        declared = ""
        for tool in self.tools:
            function = tool.get("function", tool)
            described = f"Description: {function.get('description', '')}"
            declared += f"\n### {function['name']}\n{described}\n\nParameters: {write_object(function['parameters'])}\n"
        return [self.marks[BEGIN], system + "\n\n" + _TOOLS + declared, *self.marks.published(_CALLING)]

    def _tool(self, outputs: Sequence[str], calls: Sequence[str]) -> list[Piece]:
        pieces: list[Piece] = []
        for output in outputs:
            pieces += [self.marks[OUTPUT], output, self.marks[END_OUTPUT]]
        return pieces

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        name, found, text = raw.partition(SEPARATOR)
        return read_arguments(name.strip(), text, schemas) if found else "the call is not a name and its arguments"

    def call_name(self, raw: str) -> str:
        name, found, _ = raw.partition(SEPARATOR)
        return name.strip() if found else ""

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        return f"{name}{SEPARATOR}{write_object(arguments)}"
