"""The chat format of Llama 3.1 to 3.3: role headers, and calls that are JSON objects without marks.

Source: the chat template in tokenizer_config.json of meta-llama/Llama-3.2-3B-Instruct on Hugging Face.

A JSON object with a "name" that begins a line of a turn is a call. The template knows one call per turn, which is all
of the turn; this format also reads text before it and several calls, each on a line. Tools are declared in the first
user message. Tool outputs are JSON strings, as in the template, and the date that it names is fixed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from etude.text.calls import Arguments, CallSchema
from etude.text.formats.grammar import Grammar
from etude.text.formats.json_calls import name_in, read_object, unknown, write_object
from etude.text.formats.marked import END_THINK, THINK, MarkedFormat
from etude.text.formats.marks import Piece

BEGIN, HEADER, END_HEADER = "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"
END, END_OF_TEXT, END_OF_MESSAGE = "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"

# The template's wording, byte for byte: the model was trained on it.
_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of argument '
    "name and its value}.Do not use variables.\n\n"
)


class Llama3Format(MarkedFormat):
    """The chat format of Llama 3. The template has no thinking; this format writes it if there are tokens for it."""

    NAMES: ClassVar[tuple[str, ...]] = (BEGIN, HEADER, END_HEADER, END, END_OF_TEXT, END_OF_MESSAGE)
    OPTIONAL: ClassVar[tuple[str, ...]] = (THINK, END_THINK)

    def _grammar(self) -> Grammar:
        return Grammar(
            stop=(self.marks[END], self.marks[END_OF_TEXT], self.marks[END_OF_MESSAGE]),
            call=("", ""),
            think=self.marks.pair(THINK, END_THINK),
            before_first_call="\n",
            between_calls="\n",
        )

    def _assistant(self) -> list[Piece]:
        return self._header("assistant")

    def _header(self, role: str) -> list[Piece]:
        return [self.marks[HEADER], role, self.marks[END_HEADER], "\n\n"]

    def _message(self, role: str, text: str) -> list[Piece]:
        return [*self._header(role), text, self.marks[END]]

    def opening(self, system: str | None, user: str) -> list[int]:
        declared = "".join(json.dumps(tool, ensure_ascii=False, indent=4) + "\n\n" for tool in self.tools)
        told = _TOOLS + declared + user if self.tools else user
        return self.marks.ids([*self._begun(system), *self._user(told), *self._assistant()])

    def _system(self, system: str) -> list[Piece]:
        environment = "Environment: ipython\n" if self.tools else ""
        return [self.marks[BEGIN], *self._message("system", environment + _DATES + system)]

    def _without_system(self) -> list[Piece]:
        return self._system("")

    def _user(self, text: str) -> list[Piece]:
        return self._message("user", text)

    def _later_system(self, text: str) -> list[Piece]:
        return self._message("system", text)

    def _tool(self, outputs: Sequence[str], calls: Sequence[str]) -> list[Piece]:
        told = [self._message("ipython", json.dumps(output, ensure_ascii=False)) for output in outputs]
        return [*(piece for message in told for piece in message), *self._assistant()]

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        call = read_object(raw, "the call is")
        if isinstance(call, str):
            return call
        name, arguments = call.get("name"), call.get("parameters")
        if not isinstance(name, str):
            return "the call has no name"
        if (problem := unknown(name, schemas)) is not None:
            return problem
        return (name, arguments) if isinstance(arguments, dict) else f"{name}: parameters must be a JSON object"

    def call_name(self, raw: str) -> str:
        call = read_object(raw, "")
        name = call.get("name") if isinstance(call, dict) else name_in(raw)
        return name if isinstance(name, str) else ""

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        return write_object({"name": name, "parameters": dict(arguments)})
