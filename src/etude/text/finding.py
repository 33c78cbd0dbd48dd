"""Finds the chat format of a model's folder: the one of ours that writes conversations as the folder's template does.

The template renders a few conversations. They are encoded as transformers encodes them and compared, id by id, with
what each format writes. A format is found only if the openings, with tools declared, and plain turns are equal; a
difference in how calls are written is reported, because some templates cannot write every call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from etude.text.calls import CallSchema, Parameter
from etude.text.format import Format, following
from etude.text.formats import FORMATS
from etude.text.pretrained import PretrainedTokenizer
from etude.text.rendering import Template, read_template
from etude.text.vocabulary import TokenizerError

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class FoundFormat:
    name: str
    by_template: bool
    """Whether the folder's chat template was compared. Without a template, the first format whose special tokens the
    vocabulary has is taken."""
    differs: str = ""
    """The first difference between the format and the template; empty if there is none."""


class _Turn(NamedTuple):
    role: str
    text: str
    calls: tuple[str, ...] = ()
    """Names of the tools called, keys of _ARGUMENTS."""


_PATH = "src/größe.py"
_ARGUMENTS: dict[str, dict[str, object]] = {"read": {"path": _PATH, "first": 3}, "list": {}}
_SCHEMAS = {
    "read": CallSchema("read", (Parameter("path"), Parameter("first", "int", False))),
    "list": CallSchema("list"),
}
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Show a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "Which."}, "first": {"type": "integer"}},
                "required": ["path"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "list",
            "description": "All files.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
_OPENED = (_Turn("system", "You mend code."), _Turn("user", "largest() gives the smallest.\nNaïve? 変"))
_PLAIN = (*_OPENED, _Turn("assistant", "It does.\n\nShall I?"), _Turn("user", "Go on."))
_ONE_CALL = (*_OPENED, _Turn("assistant", "", ("read",)), _Turn("tool", "return min(a)\n# end"))
_CALLS = (*_OPENED, _Turn("assistant", "", ("read", "list")), _Turn("tool", "return min(a)"), _Turn("tool", "größe.py"))
_TEXT_AND_CALL = (*_OPENED, _Turn("assistant", "I look.", ("read",)), _Turn("tool", "return min(a)"))


class _Probe(NamedTuple):
    turns: Sequence[_Turn]
    tools: list[dict[str, Any]]
    text: str
    """What the template makes of it."""


def find_format(folder: Path, tokenizer: PretrainedTokenizer, preferred: Sequence[str] = ()) -> FoundFormat:
    """Return the chat format of a model's folder. `preferred` are the formats of its family, which come first where
    several fit. Raises TokenizerError if none fits."""
    forms = dict(_possible(tokenizer, [*preferred, *(name for name in FORMATS if name not in preferred)]))
    if not forms:
        raise TokenizerError(
            f"the tokenizer of {folder} has the special tokens of no chat format that is known: {', '.join(FORMATS)}"
        )
    template = read_template(folder)
    if template is None:
        return FoundFormat(next(iter(forms)), by_template=False)
    needed, calls = _probes(template)
    fitting: dict[str, list[str]] = {}
    refused: list[str] = []
    for name, form in forms.items():
        wrong, unlike = ([_difference(form, tokenizer, probe) for probe in probes] for probes in (needed, calls))
        if any(wrong):
            refused.append(f"format {name} differs {next(filter(None, wrong))}")
        else:
            fitting[name] = [one for one in unlike if one]
    if not fitting:
        raise TokenizerError(f"the chat template of {folder} is none that is known ({refused[0]}): name harness.format")
    name = min(fitting, key=lambda name: len(fitting[name]))
    return FoundFormat(name, by_template=True, differs=next(iter(fitting[name]), ""))


def _possible(tokenizer: PretrainedTokenizer, names: Sequence[str]) -> Iterator[tuple[str, Format]]:
    for name in names:
        try:
            yield name, FORMATS[name](tokenizer)
        except TokenizerError:
            continue


def _probes(template: Template) -> tuple[list[_Probe], list[_Probe]]:
    """Return the conversations on which a format must agree with the template, and those with calls. A template without
    a place for tools declares none, and one that cannot write calls has no such conversations."""
    # Templates differ in how they take a call's arguments, and a turn without text.
    ways = [(as_text, empty) for as_text in (False, True) for empty in ("", None)]
    with_calls = (_ONE_CALL, _CALLS, _TEXT_AND_CALL)
    plain, declared, replied, *called = template.render(
        [
            _variables(_OPENED),
            _variables(_OPENED, _TOOLS),
            _variables(_PLAIN),
            *(_variables(turns, _TOOLS, *way) for turns in with_calls for way in ways),
        ]
    )
    if plain is None:
        raise TokenizerError(
            f"the chat template of {template.source} refuses a system and a user message: name harness.format"
        )
    tools = _TOOLS if declared is not None and declared != plain else []
    given: list[tuple[Sequence[_Turn], list[dict[str, Any]], str | None]]
    given = [(_OPENED, [], plain), (_OPENED, tools, declared), (_PLAIN, [], replied)]
    needed = [_Probe(turns, offered, text) for turns, offered, text in given if text is not None]
    calls = []
    for place, turns in enumerate(with_calls):
        texts = called[place * len(ways) : (place + 1) * len(ways)]
        said = [_PATH, *(turn.text for turn in turns)]
        if shown := next((text for text in texts if text is not None and all(part in text for part in said)), None):
            calls.append(_Probe(turns, tools, shown))
    return needed, calls


def _variables(
    turns: Sequence[_Turn], tools: Sequence[Mapping[str, Any]] = (), as_text: bool = False, empty: str | None = ""
) -> dict[str, Any]:
    """Return the variables that transformers gives to a template."""
    return {
        "messages": list(_messages(turns, as_text, empty)),
        "add_generation_prompt": True,
        **({"tools": list(tools)} if tools else {}),
    }


def _messages(turns: Sequence[_Turn], as_text: bool, empty: str | None) -> Iterator[dict[str, Any]]:
    asked: list[dict[str, Any]] = []
    for turn in turns:
        if turn.calls:
            asked = [
                {
                    "id": f"functions.{name}:{number}",
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(_ARGUMENTS[name], ensure_ascii=False) if as_text else _ARGUMENTS[name],
                    },
                }
                for number, name in enumerate(turn.calls)
            ]
            yield {"role": turn.role, "content": turn.text or empty, "tool_calls": list(asked)}
        elif turn.role == "tool":
            call = asked.pop(0)
            yield {
                "role": turn.role,
                "name": call["function"]["name"],
                "tool_call_id": call["id"],
                "content": turn.text,
            }
        else:
            yield {"role": turn.role, "content": turn.text}


def _written(form: Format, turns: Sequence[_Turn]) -> list[int]:
    """Return the ids of a conversation as a policy makes them, turn by turn, up to the assistant's next turn."""
    ids = form.opening(turns[0].text, turns[1].text)
    raws: list[str] = []
    for role, group in groupby(turns[2:], key=lambda turn: turn.role):
        said = list(group)
        if role == "assistant":
            names = said[0].calls
            raws = [form.format_call(name, _ARGUMENTS[name], _SCHEMAS[name], n) for n, name in enumerate(names)]
            ids += form.render_turn("", said[0].text, raws)
            ids += form.closing(ids)
        elif role == "tool":
            ids += following(form, ids, form.tool_outputs([turn.text for turn in said], raws))
        else:
            ids += following(form, ids, form.user_message(said[0].text))
    return ids


def _difference(form: Format, tokenizer: PretrainedTokenizer, probe: _Probe) -> str:
    """Return where the format differs from the template on one conversation; empty if it does not."""
    ours = _written(form.offering(probe.tools), probe.turns)
    theirs = tokenizer.encode_published(probe.text)
    if ours == theirs:
        return ""
    same = next((n for n, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), None)
    at = min(len(ours), len(theirs)) if same is None else same
    begin = max(0, at - 3)
    shown = (tokenizer.decode(ids[begin : begin + 20])[:_SHOWN] for ids in (theirs, ours))
    return "at {!r}, where it has {!r}".format(*shown)
