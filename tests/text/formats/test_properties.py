"""What holds for every format, whatever is said and whatever is sampled."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.formats.golden import SCHEMAS, TOOLS
from tests.text.formats.tiny import SPECIALS, Letters, markers, merged

from etude.text import CallSchema, Exchange, Format, Parameter, TokenizerLike
from etude.text.formats import FORMATS, ChatMLFormat, KimiK2Format, Qwen3Format

LETTERS, MERGED = Letters(), merged()
CALL_TAG = re.compile("</?tool_call>")


def forms(tokenizer: TokenizerLike) -> dict[str, Format]:
    # Over these tokenizers, Qwen2.5's is Qwen3's.
    made: dict[str, Format] = {name: make(tokenizer, TOOLS) for name, make in FORMATS.items() if name != "qwen2.5"}
    made["qwen3 without thinking"] = Qwen3Format(tokenizer, TOOLS, thinking=False)
    made["kimi-k2 with thinking"] = KimiK2Format(tokenizer, TOOLS, thinking=True, history="template")
    made["qwen3 as its template"] = Qwen3Format(tokenizer, TOOLS, history="template")
    return made


BY_LETTERS, BY_PAIRS = forms(LETTERS), forms(MERGED)
every_form = pytest.mark.parametrize("name", BY_LETTERS)

signs = st.sampled_from(
    [*SPECIALS, "\n", "\n\n", " ", "</parameter>", "<parameter=path>", "</function>", "<function=read>", "```", "{}"]
)
texts = st.lists(st.one_of(st.text(max_size=6), signs), max_size=6).map("".join)
any_ids = st.lists(
    st.one_of(st.integers(0, LETTERS.size - 1), st.integers(256, LETTERS.size - 1), st.sampled_from(b"\n{}<> a")),
    max_size=40,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@every_form
@settings(max_examples=25, deadline=None)
@given(thinking=texts, text=texts, calls=st.lists(texts, max_size=3))
def test_a_rendered_turn_parses_back(name: str, thinking: str, text: str, calls: list[str]) -> None:
    if name == "chatml":  # whose tags are text, so that a text which spells one is a call
        text, *calls = (CALL_TAG.sub("", said) for said in (text, *calls))
    if name == "llama3":  # whose calls have no marks
        calls = [json.dumps({"name": said}) for said in calls]
    for form in (BY_LETTERS[name], BY_PAIRS[name]):
        ids = form.render_turn(thinking, text, calls)
        turn = form.parse(ids)
        assert (turn.thinking, turn.text, [call.raw for call in turn.calls]) == (thinking, text, calls)
        assert turn.ended
        assert all(call.complete for call in turn.calls)
        assert turn.thinking_tokens + turn.call_tokens + turn.message_tokens == len(ids)


@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<tool", "_call>", "é", "\n", "{", "<think>"])))
def test_calls_between_tags_that_are_text(pieces: list[str]) -> None:
    said = "".join(pieces)
    tokenizers: tuple[TokenizerLike, ...] = (LETTERS, MERGED)
    turns = [ChatMLFormat(tokenizer).parse(tokenizer.encode(said)) for tokenizer in tokenizers]
    found = list(re.finditer(r"<tool_call>(.*?)(</tool_call>|\Z)", said, re.DOTALL))
    for turn in turns:
        expected = [(call.group(1), bool(call.group(2))) for call in found]
        assert [(call.raw, call.complete) for call in turn.calls] == expected
    assert turns[0].call_tokens == sum(len(call.group().encode()) for call in found), "a letter is a token"
    for turn, tokenizer in zip(turns, tokenizers, strict=True):
        assert turn.call_tokens + turn.message_tokens == len(tokenizer.encode(said))
        assert (turn.call_tokens > 0) == bool(found)


@every_form
@settings(max_examples=40, deadline=None)
@given(sampled=any_ids)
def test_any_sampled_ids_parse_and_every_token_is_counted(name: str, sampled: list[int]) -> None:
    form = BY_LETTERS[name]
    turn = form.parse(sampled)
    stops = [place for place, token in enumerate(sampled) if token in form.stop_ids]
    looked_at = stops[0] + 1 if stops else len(sampled)
    assert turn.ended == bool(stops)
    assert turn.thinking_tokens + turn.call_tokens + turn.message_tokens == looked_at
    for call in turn.calls:
        said_of(form, call.raw)
    shown = form.recall([Exchange([], sampled)])
    assert form.recall(shown) == shown
    rest = iter(sampled)
    marks = {LETTERS.special("<think>"), LETTERS.special("</think>")}
    assert all(token in rest for token in shown[0].sampled if token not in marks), "what is kept was sampled"


@every_form
@settings(max_examples=50, deadline=None)
@given(raw=texts)
def test_any_call_parses_or_gives_one_short_line(name: str, raw: str) -> None:
    said_of(BY_LETTERS[name], raw)


@pytest.mark.parametrize("name", FORMATS)
def test_the_tools_that_are_offered_are_those_declared(name: str) -> None:
    every, one, none = (
        FORMATS[name](LETTERS, tools).opening("You mend code.", "mend it") for tools in (TOOLS, TOOLS[:1], [])
    )
    form = FORMATS[name](LETTERS, TOOLS)
    assert form.offering(TOOLS[:1]).opening("You mend code.", "mend it") == one
    assert form.offering([]).opening("You mend code.", "mend it") == none
    assert form.opening("You mend code.", "mend it") == every
    assert (every != one != none) == (name != "deepseek-v3"), "V3's template has no place for tools"


def said_of(form: Format, raw: str) -> None:
    found = form.parse_call(raw, SCHEMAS)
    if isinstance(found, str):
        assert found.strip()
        assert "\n" not in found
        assert len(found) < 160
    else:
        assert found[0] == form.call_name(raw)
        assert found[0] in SCHEMAS
    assert isinstance(form.call_name(raw), str)


@pytest.mark.parametrize("name", [name for name in BY_LETTERS if name not in ("qwen3-coder", "glm4.5")])
@settings(max_examples=25, deadline=None)
@given(arguments=st.dictionaries(texts, json_values, max_size=3), number=st.integers(0, 999))
def test_a_written_call_parses_back(name: str, arguments: dict[str, object], number: int) -> None:
    form = BY_LETTERS[name]
    raw = form.format_call("read", arguments, SCHEMAS["read"], number)
    assert form.parse_call(raw, SCHEMAS) == ("read", arguments)
    assert form.call_name(raw) == "read"
    (call,) = form.parse(form.render_turn("", "", [raw])).calls
    assert form.parse_call(call.raw, SCHEMAS) == ("read", arguments)


@pytest.mark.parametrize(("name", "tag"), [("qwen3-coder", "</parameter>"), ("glm4.5", "</arg_value>")])
@settings(max_examples=100, deadline=None)
@given(path=texts, first=st.none() | st.integers(-(10**9) + 1, 10**9 - 1))
def test_a_call_in_tags_parses_back_or_is_refused(name: str, tag: str, path: str, first: int | None) -> None:
    form = BY_LETTERS[name]
    arguments: dict[str, object] = {"path": path} | ({} if first is None else {"first": first})
    try:
        raw = form.format_call("read", arguments, SCHEMAS["read"])
    except ValueError:
        assert tag in path
    else:
        assert form.parse_call(raw, SCHEMAS) == ("read", arguments)


@every_form
@settings(max_examples=25, deadline=None)
@given(said=st.lists(texts, min_size=4, max_size=4))
def test_no_text_becomes_a_special_token(name: str, said: list[str]) -> None:
    for tokenizer, form in ((LETTERS, BY_LETTERS[name]), (MERGED, BY_PAIRS[name])):
        call = form.format_call("list", {}, SCHEMAS["list"], 0)

        def special(texts: list[str], form: Format = form, call: str = call) -> list[int]:
            system, user, *outputs = texts
            later = form.system_message(system) or []
            return [
                *form.opening(system, user),
                *form.opening(None, user),
                *form.tool_outputs(outputs, [call] * 2),
                *form.user_message(user),
                *later,
            ]

        assert markers(tokenizer, special(said)) == markers(tokenizer, special(["a"] * 4))
        assert not markers(tokenizer, tokenizer.encode("".join(said)))


@pytest.mark.parametrize(
    ("name", "raw", "problem"),
    [
        ("qwen3", '\n{"name": "read", "arguments": {"path": "a"\n', "the call is not JSON: Expecting ',' delimiter at"),
        ("qwen3", "[1]", "the call is not a JSON object"),
        ("qwen3", '{"arguments": {}}', "the call has no name"),
        ("qwen3", '{"name": "raed", "arguments": {}}', "unknown tool raed, tools: read, list"),
        ("qwen3", '{"name": "read", "arguments": "{}"}', "read: arguments must be a JSON object"),
        ("qwen3", '{"name": "read"}', "read: arguments must be a JSON object"),
        ("qwen3", "[" * 100_000, "the call is too large"),
        ("qwen3", '{"name": 1e9, "arguments": ' + "9" * 5000 + "}", "the call is too large"),
        ("qwen3-coder", "<function=read>\n<parameter=path>\na\n</parameter>\n", "the call is not <function=name>"),
        ("qwen3-coder", "<function=read>\npath\n</function>", "read: parameters are not <parameter=name>"),
        (
            "qwen3-coder",
            "<function=read><parameter=path>a</parameter><parameter=path>b</parameter></function>",
            "read: a parameter is given twice",
        ),
        ("qwen3-coder", "<function=raed></function>", "unknown tool raed"),
        ("kimi-k2", "read:0<|tool_call_argument_begin|>{}", "the call does not begin with functions.name:number"),
        ("kimi-k2", "functions.read:0{}", "the call does not begin with functions.name:number"),
        ("kimi-k2", "functions.read:0<|tool_call_argument_begin|>{", "read: arguments are not JSON"),
        ("deepseek-v3", 'function<｜tool▁sep｜>read\n{"path": "a"}', "the call is not a name and its arguments in a"),
        ("deepseek-v3", "function<｜tool▁sep｜>read\n```json\n{]\n```", "read: arguments are not JSON"),
        ("llama3", '{"name": "read", "parameters": {}', "the call is not JSON"),
        ("llama3", '{"name": "read", "parameters": ""}', "read: parameters must be a JSON object"),
        ("llama3", '{"parameters": {}}', "the call has no name"),
        ("glm4.5", "read\n<arg_key>path</arg_key>\n", "read: arguments are not <arg_key>name</arg_key>"),
        ("glm4.5", "read" + "<arg_key>a</arg_key><arg_value></arg_value>" * 2, "read: an argument is given twice"),
        ("deepseek-v3.1", 'read{"path": "a"}', "the call is not a name and its arguments"),
        ("deepseek-v3.1", "<｜tool▁sep｜>{}", "a call without a name, tools: read, list"),
    ],
)
def test_what_is_said_of_a_malformed_call(name: str, raw: str, problem: str) -> None:
    found = BY_LETTERS[name].parse_call(raw, SCHEMAS)
    assert isinstance(found, str)
    assert found.startswith(problem)


def test_tags_hold_any_text_and_numbers_are_read_as_numbers() -> None:
    form = BY_LETTERS["qwen3-coder"]
    schemas = {"edit": CallSchema("edit", (Parameter("line", "int"), Parameter("text", "rest")))}
    text = "<parameter=text>\n\n</parameter>\nx\n</parameter>\n"
    raw = f"\n<function=edit>\n<parameter=line>\n 3 \n</parameter>\n{text}</function>\n"
    assert form.parse_call(raw, schemas) == ("edit", {"line": 3, "text": "\n</parameter>\nx"})
    inline = "<function=edit><parameter=line>three</parameter><parameter=text>a</parameter></function>"
    assert form.parse_call(inline, schemas) == ("edit", {"line": "three", "text": "a"})
