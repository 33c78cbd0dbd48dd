"""The chat format of Qwen3-Coder: Qwen3's messages, with tools declared and called in XML-like tags.

Source: examples/tool_chat_template_qwen3coder.jinja of vllm-project/vllm, which vLLM keeps for these models. Their
earlier template declared tools in other tags.

A parameter is plain text between tags, without escapes, so it may itself contain `</parameter>`. It ends at the first
`</parameter>` that is followed by another parameter or the end of the function. Values are strings; the value of an int
parameter is converted to an int.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from etude.text.calls import Arguments, CallSchema
from etude.text.format import TokenizerLike
from etude.text.formats.grammar import Grammar
from etude.text.formats.json_calls import unknown
from etude.text.formats.marks import Piece
from etude.text.formats.qwen3 import END, END_RESPONSE, RESPONSE, START, Qwen3Format

# The template's wording, byte for byte: the model was trained on it.
_DEFAULT_SYSTEM = "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."
_TOOLS = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
_CALLING = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
<tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell \
the user about function calls
</IMPORTANT>"""

_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>(.*)</function>\s*", re.DOTALL)
_OPENED = re.compile(r"<function=([^>\n]*)>")
_PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]*)>\n?(.*?)(?:\n</parameter>|</parameter>)(?=\s*(?:<parameter=|\Z))", re.DOTALL
)
_INT = re.compile(r"\s*(-?[0-9]{1,9})\s*")


class Qwen3CoderFormat(Qwen3Format):
    """The chat format of Qwen3-Coder. Its template has no thinking; this format writes thinking as Qwen3 does, and
    never rewrites history."""

    typed = False

    def __init__(self, tokenizer: TokenizerLike, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(tokenizer, tools)

    def _grammar(self) -> Grammar:
        return replace(super()._grammar(), before_first_call="\n\n")

    def _without_system(self) -> list[Piece]:
        return self._system(_DEFAULT_SYSTEM) if self.tools else []

    def _declared(self) -> list[Piece]:
        if not self.tools:
            return []
        declared = "".join(_declaration(tool.get("function", tool)) for tool in self.tools)
        return ["\n\n", _TOOLS, declared, *self.marks.published(_CALLING)]

    def _tool(self, outputs: Sequence[str], calls: Sequence[str]) -> list[Piece]:
        pieces: list[Piece] = [self.marks[START], "user\n"]
        for output in outputs:
            pieces += [self.marks[RESPONSE], "\n" + output + "\n", self.marks[END_RESPONSE], "\n"]
        return [*pieces, self.marks[END], "\n", *self._assistant()]

    def parse_call(self, raw: str, schemas: Mapping[str, CallSchema]) -> tuple[str, Arguments] | str:
        found = _FUNCTION.fullmatch(raw)
        if found is None:
            return "the call is not <function=name>...</function>"
        name, left = found.groups()
        problem = unknown(name, schemas)
        if problem is not None:
            return problem
        kinds = {parameter.name: parameter.kind for parameter in schemas[name].parameters}
        arguments: Arguments = {}
        while left.strip():
            parameter = _PARAMETER.match(left)
            if parameter is None:
                return f"{name}: parameters are not <parameter=name>...</parameter>"
            key, value = parameter.groups()
            if key in arguments:
                return f"{name}: a parameter is given twice"
            number = _INT.fullmatch(value) if kinds.get(key) == "int" else None
            arguments[key] = int(number.group(1)) if number else value
            left = left[parameter.end() :]
        return name, arguments

    def call_name(self, raw: str) -> str:
        found = _OPENED.search(raw)
        return found.group(1) if found else ""

    def format_call(self, name: str, arguments: Mapping[str, object], schema: CallSchema, number: int = 0) -> str:
        written = "".join(f"<parameter={key}>\n{_plain(value)}\n</parameter>\n" for key, value in arguments.items())
        raw = f"\n<function={name}>\n{written}</function>\n"
        if self.parse_call(raw, {schema.name: schema}) != (name, dict(arguments)):
            raise ValueError(f"{name}: these arguments cannot be told apart from tags in the call: {sorted(arguments)}")
        return raw


def _declaration(function: Mapping[str, Any]) -> str:
    """Return a tool's declaration as the template writes it: known keys first, then all other keys of its schema."""
    schema = function.get("parameters", {})
    lines = ["", "<function>", f"<name>{function['name']}</name>"]
    if "description" in function:
        lines.append(f"<description>{str(function['description']).strip()}</description>")
    lines.append("<parameters>")
    for name, fields in schema.get("properties", {}).items():
        lines += ["<parameter>", f"<name>{name}</name>"]
        if "type" in fields:
            lines.append(f"<type>{fields['type']}</type>")
        if "description" in fields:
            lines.append(f"<description>{str(fields['description']).strip()}</description>")
        lines += [*_other(fields, ("name", "type", "description")), "</parameter>"]
    lines += [*_other(schema, ("type", "properties")), "</parameters>"]
    lines += [*_other(function, ("type", "name", "description", "parameters")), "</function>"]
    return "\n".join(lines)


def _other(fields: Mapping[str, Any], told: Sequence[str]) -> list[str]:
    return [f"<{key}>{_plain(value)}</{key}>" for key, value in fields.items() if key not in told]


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else str(value)
