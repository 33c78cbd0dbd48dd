"""The chat format of GLM-4.5 and GLM-4.6: role tokens begin messages, calls are tagged pairs of keys and values.

Source: chat_template.jinja of zai-org/GLM-4.5 on Hugging Face.

A message has no end marker. A turn ends with the role token of the next message: `<|observation|>` after calls,
`<|user|>` otherwise, or `<|endoftext|>`. A turn always marks thinking, also where there is none. The template drops the
thinking of turns before the last user message; this format keeps it, so that each prompt extends the last one.

A value is plain text between tags, without escapes. It ends at the first `</arg_value>` that is followed by another key
or the end of the call. Values are strings; the value of an int parameter is converted to an int.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from etude.text.calls import Arguments, CallSchema
from etude.text.formats.grammar import Grammar
from etude.text.formats.json_calls import unknown, write_object
from etude.text.formats.marked import END_THINK, THINK, MarkedFormat
from etude.text.formats.marks import Piece

MASK, START = "[gMASK]", "<sop>"
SYSTEM, USER, ASSISTANT, OBSERVATION = "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"
END_OF_TEXT = "<|endoftext|>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
RESPONSE, END_RESPONSE = "<tool_response>", "</tool_response>"
KEY, END_KEY, VALUE, END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"

# The template's wording, byte for byte: the model was trained on it.
_TOOLS = (
    "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_CALLING = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}\n"
    "<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
    "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
)

# Every second group is a tag.
_ARGUMENT = re.compile(rf"(\s*)({KEY})(.*?)({END_KEY})(\s*)({VALUE})(.*?)({END_VALUE})(?=\s*(?:{KEY}|\Z))", re.DOTALL)
_KEY_OF, _VALUE_OF = 3, 7
_INT = re.compile(r"\s*(-?[0-9]{1,9})\s*")


class GLM45Format(MarkedFormat):
    NAMES: ClassVar[tuple[str, ...]] = (
        *(MASK, START, SYSTEM, USER, ASSISTANT, OBSERVATION, END_OF_TEXT, CALL, END_CALL),
        *(KEY, END_KEY, VALUE, END_VALUE, THINK, END_THINK),
    )
    OPTIONAL: ClassVar[tuple[str, ...]] = (RESPONSE, END_RESPONSE)
    typed = False

    def _grammar(self) -> Grammar:
        return Grammar(
            stop=(self.marks[END_OF_TEXT], self.marks[USER], self.marks[OBSERVATION]),
            heads=(self.marks[USER], self.marks[OBSERVATION]),
            call=(self.marks[CALL], self.marks[END_CALL]),
            inside=self._pieces_of_call,
            think=(self.marks[THINK], self.marks[END_THINK]),
            empty_think=True,
            before_thinking="\n",
            after_thinking="\n",
            before_first_call="\n",
            between_calls="\n",
        )

    def _assistant(self) -> list[Piece]:
        return [self.marks[ASSISTANT]]

    def _system(self, system: str) -> list[Piece]:
        return [*self._without_system(), *self._later_system(system)]

    def _without_system(self) -> list[Piece]:
        declared = "".join(write_object(tool) + "\n" for tool in self.tools)
        tools = [self.marks[SYSTEM], _TOOLS, declared, *self.marks.published(_CALLING)] if self.tools else []
        return [self.marks[MASK], self.marks[START], *tools]

    def _user(self, text: str) -> list[Piece]:
        return [self.marks[USER], "\n" + text]

    def _later_system(self, text: str) -> list[Piece]:
        return [self.marks[SYSTEM], "\n" + text]

    def _tool(self, outputs: Sequence[str], calls: Sequence[str]) -> list[Piece]:
        pieces: list[Piece] = [self.marks[OBSERVATION]]
        for output in outputs:
            begin, end = (self.marks.published(mark) for mark in (RESPONSE, END_RESPONSE))
            pieces += ["\n", *begin, "\n" + output + "\n", *end]
        return [*pieces, *self._assistant()]

    def _pieces_of_call(self, raw: str) -> list[Piece]:
        """Split a call where it has its own tags; tags in its values are text."""
        at = len(raw.partition(KEY)[0])
        pieces: list[Piece] = [raw[:at]]
        while found := _ARGUMENT.match(raw, at):
            pieces += [self.marks[part] if place % 2 else part for place, part in enumerate(found.groups())]
            at = found.end()
        return [*pieces, raw[at:]]

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        name = self.call_name(raw)
        if (problem := unknown(name, schemas)) is not None:
            return problem
        kinds = {parameter.name: parameter.kind for parameter in schemas[name].parameters}
        arguments: Arguments = {}
        at = len(raw.partition(KEY)[0])
        while raw[at:].strip():
            found = _ARGUMENT.match(raw, at)
            if found is None:
                return f"{name}: arguments are not {KEY}name{END_KEY}{VALUE}value{END_VALUE}"
            key, value = found[_KEY_OF].strip(), found[_VALUE_OF]
            if key in arguments:
                return f"{name}: an argument is given twice"
            number = _INT.fullmatch(value) if kinds.get(key) == "int" else None
            arguments[key] = int(number.group(1)) if number else value
            at = found.end()
        return name, arguments

    def call_name(self, raw: str) -> str:
        return raw.partition(KEY)[0].strip()

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in arguments.items()
        }
        written = "".join(f"{KEY}{key}{END_KEY}\n{VALUE}{text}{END_VALUE}\n" for key, text in texts.items())
        raw = f"{name}\n{written}"
        if self.parse_call(raw, {schema.name: schema}) != (name, dict(arguments)):
            raise ValueError(f"{name}: these arguments cannot be told apart from tags in the call: {sorted(arguments)}")
        return raw
