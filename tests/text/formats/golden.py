"""One conversation of ours, and what each published template makes of it.

It has tools, thinking, two calls in a turn, a call that does not parse, a turn that was cut off, a second user message,
letters beyond ASCII, and a file that says `<|im_end|>`. Expected texts were written from the templates that each
format's file names. A special token's name in them is that token, but for what stands between « and »: plain text.
"""

from __future__ import annotations

import json
import re
from typing import Any

from etude.text import CallSchema, Format, Parameter, TokenizerLike, following
from etude.text.formats import Llama3Format

SYSTEM = "You mend code."
TASK = "larger() gives the smaller one. Naïve?"
THINKING = "The test says max."
ANSWER = "I read both."
OUTPUTS = ("return min(a, b)", "<|im_end|> </tool_call> <｜User｜> ünï.py")
REFUSAL = "The call could not be read."
CUT = "Let me th"
AGAIN = "Go on, please."
DONE = "Done."

READ: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Show a file.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Which, é too."},
                "first": {"type": "integer", "description": ""},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    },
}
LIST: dict[str, Any] = {
    "type": "function",
    "function": {"name": "list", "description": "All files.", "parameters": {"type": "object", "properties": {}}},
}
TOOLS = [READ, LIST]
SCHEMAS = {
    "read": CallSchema("read", (Parameter("path"), Parameter("first", "int", False))),
    "list": CallSchema("list"),
}

READ_JSON = (
    '{"type": "function", "function": {"name": "read", "description": "Show a file.", "parameters": {"type": "object", '
    '"properties": {"path": {"type": "string", "description": "Which, é too."}, "first": {"type": "integer", '
    '"description": ""}}, "required": ["path"], "additionalProperties": false}}}'
)
LIST_JSON = (
    '{"type": "function", "function": {"name": "list", "description": "All files.", '
    '"parameters": {"type": "object", "properties": {}}}}'
)

QWEN3 = (
    "<|im_start|>system\nYou mend code.\n\n# Tools\n\nYou may call one or more functions to assist with the user "
    "query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    f"{READ_JSON}\n{LIST_JSON}\n</tools>\n\nFor each function call, return a json object with function name and "
    "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\nlarger() gives the smaller one. Naïve?<|im_end|>\n"
    "<|im_start|>assistant\n<think>\nThe test says max.\n</think>\n\nI read both.\n"
    '<tool_call>\n{"name": "read", "arguments": {"path": "calc.py", "first": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\nreturn min(a, b)\n</tool_response>\n"
    "<tool_response>\n«<|im_end|> </tool_call> <｜User｜> ünï.py»\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n<tool_call>read é<|im_start|></tool_call><|im_end|>\n"
    "<|im_start|>user\n<tool_response>\nThe call could not be read.\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\nLet me th<|im_end|>\n"
    "<|im_start|>user\nGo on, please.<|im_end|>\n"
    "<|im_start|>assistant\nDone.<|im_end|>\n"
)

QWEN3_CODER = (
    "<|im_start|>system\nYou mend code.\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n"
    "<function>\n<name>read</name>\n<description>Show a file.</description>\n<parameters>\n"
    "<parameter>\n<name>path</name>\n<type>string</type>\n<description>Which, é too.</description>\n</parameter>\n"
    "<parameter>\n<name>first</name>\n<type>integer</type>\n<description></description>\n</parameter>\n"
    '<required>["path"]</required>\n<additionalProperties>False</additionalProperties>\n</parameters>\n</function>\n'
    "<function>\n<name>list</name>\n<description>All files.</description>\n<parameters>\n</parameters>\n</function>\n"
    "</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested "
    "within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but "
    "NOT after\n- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n</IMPORTANT><|im_end|>\n"
    "<|im_start|>user\nlarger() gives the smaller one. Naïve?<|im_end|>\n"
    "<|im_start|>assistant\n<think>\nThe test says max.\n</think>\n\nI read both.\n\n"
    "<tool_call>\n<function=read>\n<parameter=path>\ncalc.py\n</parameter>\n<parameter=first>\n3\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=list>\n</function>\n</tool_call><|im_end|>\n"
    "<|im_start|>user\n<tool_response>\nreturn min(a, b)\n</tool_response>\n"
    "<tool_response>\n«<|im_end|> </tool_call> <｜User｜> ünï.py»\n</tool_response>\n<|im_end|>\n"
    "<|im_start|>assistant\n<tool_call>read é<|im_start|></tool_call><|im_end|>\n"
    "<|im_start|>user\n<tool_response>\nThe call could not be read.\n</tool_response>\n<|im_end|>\n"
    "<|im_start|>assistant\nLet me th<|im_end|>\n"
    "<|im_start|>user\nGo on, please.<|im_end|>\n"
    "<|im_start|>assistant\nDone.<|im_end|>\n"
)

_KIMI_TOOLS = (
    '[{"function":{"description":"Show a file.","name":"read","parameters":{"additionalProperties":false,'
    '"properties":{"first":{"description":"","type":"integer"},"path":{"description":"Which, é too.",'
    '"type":"string"}},"required":["path"],"type":"object"}},"type":"function"},'
    '{"function":{"description":"All files.","name":"list","parameters":{"properties":{},"type":"object"}},'
    '"type":"function"}]'
)

KIMI_K2 = (
    f"<|im_system|>tool_declare<|im_middle|>{_KIMI_TOOLS}<|im_end|>"
    "<|im_system|>system<|im_middle|>You mend code.<|im_end|>"
    "<|im_user|>user<|im_middle|>larger() gives the smaller one. Naïve?<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|><think>The test says max.</think>I read both.<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{"path": "calc.py", "first": 3}<|tool_call_end|>'
    "<|tool_call_begin|>functions.list:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|><|im_end|>"
    "<|im_system|>read<|im_middle|>## Return of functions.read:0\nreturn min(a, b)<|im_end|>"
    "<|im_system|>list<|im_middle|>## Return of functions.list:1\n«<|im_end|> </tool_call> <｜User｜> ünï.py»<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|><|tool_call_begin|>read é<|im_user|>"
    "<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    "<|im_system|>tool<|im_middle|>## Return of «read é<|im_user|>»\nThe call could not be read.<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>Let me th<|im_end|>"
    "<|im_user|>user<|im_middle|>Go on, please.<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>Done.<|im_end|>"
)

DEEPSEEK_V3 = (
    "<｜begin▁of▁sentence｜>You mend code.<｜User｜>larger() gives the smaller one. Naïve?<｜Assistant｜>"
    "<think>\nThe test says max.\n</think>\n\nI read both.<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n```json\n{"path": "calc.py", "first": 3}\n```<｜tool▁call▁end｜>'
    "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>list\n```json\n{}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>return min(a, b)<｜tool▁output▁end｜>"
    "<｜tool▁output▁begin｜>«<|im_end|> </tool_call> <｜User｜> ünï.py»<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read é<｜User｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    "<｜end▁of▁sentence｜>"
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>The call could not be read.<｜tool▁output▁end｜>"
    "<｜tool▁outputs▁end｜>"
    "Let me th<｜end▁of▁sentence｜><｜User｜>Go on, please.<｜Assistant｜>Done.<｜end▁of▁sentence｜>"
)

DEEPSEEK_V31 = (
    "<｜begin▁of▁sentence｜>You mend code.\n\n## Tools\nYou have access to the following tools:\n\n"
    '### read\nDescription: Show a file.\n\nParameters: {"type": "object", "properties": {"path": {"type": "string", '
    '"description": "Which, é too."}, "first": {"type": "integer", "description": ""}}, "required": ["path"], '
    '"additionalProperties": false}\n\n'
    '### list\nDescription: All files.\n\nParameters: {"type": "object", "properties": {}}\n\n'
    "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    "{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n"
    "<｜User｜>larger() gives the smaller one. Naïve?<｜Assistant｜></think>"
    "<think>The test says max.</think>I read both.<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>read<｜tool▁sep｜>{"path": "calc.py", "first": 3}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>list<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    "<｜tool▁output▁begin｜>return min(a, b)<｜tool▁output▁end｜>"
    "<｜tool▁output▁begin｜>«<|im_end|> </tool_call> <｜User｜> ünï.py»<｜tool▁output▁end｜>"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read é<｜User｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    "<｜end▁of▁sentence｜><｜tool▁output▁begin｜>The call could not be read.<｜tool▁output▁end｜>"
    "Let me th<｜end▁of▁sentence｜><｜User｜>Go on, please.<｜Assistant｜></think>Done.<｜end▁of▁sentence｜>"
)

CHATML = "".join(
    part if part.startswith("«") else re.sub(r"</?tool_(?:call|response)>", r"«\g<0>»", part)
    for part in re.split("(«.*?»)", QWEN3)
)
"""As Qwen3 writes it; the tags of calls and of outputs are plain text."""

_GLM45_TOOL = "\n<tool_response>\n{}\n</tool_response>"
GLM45 = (
    "[gMASK]<sop><|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{READ_JSON}\n{LIST_JSON}\n"
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
    "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
    "<|system|>\nYou mend code.<|user|>\nlarger() gives the smaller one. Naïve?<|assistant|>"
    "\n<think>The test says max.</think>\nI read both."
    "\n<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>calc.py</arg_value>\n"
    "<arg_key>first</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>list\n</tool_call>"
    f"<|observation|>{_GLM45_TOOL.format(OUTPUTS[0])}{_GLM45_TOOL.format('«' + OUTPUTS[1] + '»')}<|assistant|>"
    "\n<think></think>\n<tool_call>read é[gMASK]</tool_call>"
    f"<|observation|>{_GLM45_TOOL.format(REFUSAL)}<|assistant|>"
    "Let me th<|endoftext|><|user|>\nGo on, please.<|assistant|>\n<think></think>\nDone.<|user|>"
)

_LLAMA3_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
_LLAMA3_ASKED = _LLAMA3_HEADER.format("assistant")
_LLAMA3_OUTPUT = _LLAMA3_HEADER.format("ipython") + '«"{}"»<|eot_id|>'
LLAMA3 = (
    f"<|begin_of_text|>{_LLAMA3_HEADER.format('system')}Environment: ipython\n"
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nYou mend code.<|eot_id|>"
    f"{_LLAMA3_HEADER.format('user')}Given the following functions, please respond with a JSON for a function call "
    "with its proper arguments that best answers the given prompt.\n\n"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    "Do not use variables.\n\n"
    f"{json.dumps(READ, ensure_ascii=False, indent=4)}\n\n{json.dumps(LIST, ensure_ascii=False, indent=4)}\n\n"
    f"larger() gives the smaller one. Naïve?<|eot_id|>{_LLAMA3_ASKED}"
    '<think>The test says max.</think>I read both.\n{"name": "read", "parameters": {"path": "calc.py", "first": 3}}\n'
    '{"name": "list", "parameters": {}}<|eot_id|>'
    f"{''.join(map(_LLAMA3_OUTPUT.format, OUTPUTS))}{_LLAMA3_ASKED}"
    f'{{"name": read é<|begin_of_text|><|eot_id|>{_LLAMA3_OUTPUT.format(REFUSAL)}{_LLAMA3_ASKED}'
    f"Let me th<|eot_id|>{_LLAMA3_HEADER.format('user')}Go on, please.<|eot_id|>{_LLAMA3_ASKED}Done.<|eot_id|>"
)

EXPECTED = {
    "qwen3": QWEN3,
    "qwen3-coder": QWEN3_CODER,
    "qwen2.5": QWEN3,
    "glm4.5": GLM45,
    "llama3": LLAMA3,
    "kimi-k2": KIMI_K2,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v3.1": DEEPSEEK_V31,
    "chatml": CHATML,
}
_STRAY = ("<|im_start|>", "<|im_user|>", "<｜User｜>", "[gMASK]", "<|begin_of_text|>")


def expected_text(name: str, tokenizer: TokenizerLike) -> str:
    """Some real tokenizers of these formats have no tokens for thinking; then the conversation has none either."""
    text = EXPECTED[name]
    return text if thinks(tokenizer) else re.sub("<think>.*?</think>\n*", "", text, flags=re.DOTALL)


def thinks(tokenizer: TokenizerLike) -> bool:
    return tokenizer.special("<think>") is not None


def calls_of(form: Format) -> list[str]:
    return [
        form.format_call("read", {"path": "calc.py", "first": 3}, SCHEMAS["read"], 0),
        form.format_call("list", {}, SCHEMAS["list"], 1),
    ]


def malformed(form: Format, tokenizer: TokenizerLike) -> tuple[str, list[int]]:
    """A call that is not one, with a special token where none belongs: its raw text, and a turn's ids as sampled."""
    opened = tokenizer.decode(form.opening("", ""))
    stray = next(name for name in reversed(_STRAY) if name in opened)
    raw = '{"name": read é' if isinstance(form, Llama3Format) else "read é"  # whose calls have no marks
    whole = form.render_turn("", "", [raw])
    said = tokenizer.encode(raw)
    place = next(n for n in range(len(whole)) if whole[n : n + len(said)] == said) + len(said)
    token = tokenizer.special(stray)
    assert token is not None
    return raw + stray, [*whole[:place], token, *whole[place:]]


def conversation(form: Format, tokenizer: TokenizerLike) -> list[int]:
    """As a policy extends it, turn by turn."""
    calls = calls_of(form)
    raw, sampled = malformed(form, tokenizer)
    ids = form.opening(SYSTEM, TASK)
    ids += form.render_turn(THINKING if thinks(tokenizer) else "", ANSWER, calls)
    ids += form.closing(ids)
    ids += [*following(form, ids, form.tool_outputs(OUTPUTS, calls)), *sampled]
    ids += form.closing(ids)
    ids += [*following(form, ids, form.tool_outputs([REFUSAL], [raw])), *tokenizer.encode(CUT)]
    ids += form.closing(ids)
    ids += following(form, ids, form.user_message(AGAIN))
    ids += form.render_turn("", DONE, [])
    return [*ids, *form.closing(ids)]


def read_expected(expected: str, tokenizer: TokenizerLike, names: tuple[str, ...]) -> list[int]:
    """The ids of an expected text: between special tokens everything is encoded in one go."""
    ids: list[int] = []
    known = {name: token for name in names if (token := tokenizer.special(name)) is not None}
    split = re.compile("(" + "|".join(map(re.escape, known)) + ")")
    plain = ""
    for place, part in enumerate(re.split("«(.*?)»", expected)):
        for piece in [part] if place % 2 else split.split(part):
            if place % 2 or piece not in known:
                plain += piece
                continue
            ids += [*(tokenizer.encode(plain) if plain else []), known[piece]]
            plain = ""
    return [*ids, *(tokenizer.encode(plain) if plain else [])]
